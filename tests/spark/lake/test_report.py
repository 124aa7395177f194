import base64
import json

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from tests.spark.lake.browser import browser

import penstock
from penstock.errors import InvalidArgumentError
from penstock.spark import read_table, run_frames, sync
from penstock.spark.reporting import report_figures, report_page
from penstock.spark.reporting._errors import error_groups
from penstock.spark.reporting._short import fine_step, short_figures
from penstock.spark.reporting._values import moment, with_gaps

OUTCOMES = ("completed", "retried", "failed", "stopped", "released")
NASTY = "</script><script>alert(1)</script><b>&amp;"

PLOTS = """
new Promise((done) => {
  const look = () => {
    const ids = window.penstockDrawn;
    const plots = ids.map((id) => document.getElementById(id));
    if (plots.every((plot) => plot.data && plot.querySelector("svg.main-svg"))) {
      const shown = plots.map((plot) => plot.data.map(({name, x, y, base}) => ({name, x, y, base})));
      done({ids, shown, text: document.body.innerText, back: getComputedStyle(document.body).backgroundColor});
    } else setTimeout(look, 20);
  };
  look();
})
"""


def small_figures():
    times = ["2026-11-16T09:00", "2026-11-16T10:00"]
    return {
        "format": "penstock-report",
        "made_at": "2026-11-16T12:00:00+00:00",
        "sources": ["s"],
        "events": 7,
        "unit": "hour",
        "unit_seconds": 3600,
        "summary": {
            **dict.fromkeys(
                (
                    "jobs",
                    "completed",
                    "failed",
                    "cancelled",
                    "waiting",
                    "running",
                    "attempts",
                    "retried",
                    "released",
                ),
                3,
            ),
            **dict.fromkeys(("busy_seconds", "wait_p50", "wait_p99", "run_p50", "run_p99"), 1.5),
            "first": times[0],
            "last": times[1],
        },
        "throughput": {
            "time": times,
            "completed": [5, 6],
            "retried": [1, 0],
            "failed": [0, 2],
            "stopped": [0, 0],
            "released": [0, 4],
        },
        "backlog": {"time": times, "enqueued": [6, 8], "waiting": [0, 3]},
        "wait": {"time": times, "n": [6, 8], "p50": [0.1, 0.2], "p95": [0.5, 0.6], "p99": [1.0, None]},
        "run": {"time": times, "n": [6, 8], "p50": [1.1, 1.2], "p95": [1.5, 1.6], "p99": [2.0, 3.0]},
        "types": {
            "type": ["resize", NASTY],
            "attempts": [10, 4],
            "completed": [8, 3],
            "retried": [1, 1],
            "failed": [1, 0],
            "run_p50": [1.0, 2.0],
            "run_p99": [2.0, 3.0],
        },
        "workers": {"worker": ["w1", NASTY], "attempts": [9, 5], "busy_seconds": [100.5, 20.25]},
        "errors": [
            {
                "message": NASTY,
                "attempts": 5,
                "jobs": 4,
                "failed": 2,
                "types": ["resize", NASTY],
                "category": "temporary",
                "last": times[1],
                "example": NASTY,
            }
        ],
        "slowest": [
            {
                "job_id": NASTY,
                "attempt": 1,
                "type": NASTY,
                "assignee_id": None,
                "outcome": "failed",
                "wait_seconds": 0.5,
                "run_seconds": 9.75,
                "error": NASTY,
            }
        ],
        "flows": [
            {
                "flow_id": NASTY,
                "type": "t",
                "jobs": 3,
                "depth": 2,
                "seconds": 12.0,
                "steps": [
                    {
                        "job_id": "a",
                        "type": "t",
                        "begin_seconds": 0.0,
                        "wait_seconds": 1.0,
                        "run_seconds": 5.0,
                    },
                    {
                        "job_id": NASTY,
                        "type": "t",
                        "begin_seconds": 6.0,
                        "wait_seconds": 2.0,
                        "run_seconds": 4.0,
                    },
                ],
            }
        ],
    }


#: What is wider than the window, or is drawn outside of its plot.
OUTSIDE = """
(() => {
  const wide = [...document.querySelectorAll("body *")].filter((each) => !each.closest(".scroll") && !each.closest("svg")
    && each.getBoundingClientRect().right > innerWidth + 1).map((each) => `${each.tagName}#${each.id}`);
  const drawn = window.penstockDrawn.flatMap((id) => {
    const plot = document.getElementById(id), box = plot.getBoundingClientRect();
    return [...plot.querySelectorAll("svg.main-svg, svg text, svg .legend")].filter((each) => {
      const own = each.getBoundingClientRect();
      return own.width && (own.right > box.right + 1 || own.left < box.left - 1);
    }).map((each) => `${id}: ${each.textContent}`);
  });
  return {wide, drawn, page: document.documentElement.scrollWidth, window: innerWidth};
})()
"""


def long_figures():
    """Figures with long names, many workers and a stretch without anything."""
    figures = small_figures()
    name = "a-worker-with-a-long-name-on-a-host-with-a-long-name.example.org:4711:"
    figures["workers"] = {
        "worker": [f"{name}{number}" for number in range(20)],
        "attempts": [1] * 20,
        "busy_seconds": [123_456.75] * 20,
    }
    figures["types"]["type"] = ["shop.images.thumbnails.make_a_small_one", "shop.mail.send_a_long_letter"]
    figures["slowest"] *= 20
    figures["errors"] *= 5
    return figures


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a browser made of the page: in light, in dark, and what it complained about."""
    folder = tmp_path_factory.mktemp("report")
    page = folder / "report.html"
    page.write_text(report_page(small_figures()), encoding="utf-8")
    with browser(folder) as window:
        window.wear("light")
        window.open(page)
        light = window.ask(PLOTS)
        window.wear("dark")
        window.ask("new Promise((done) => setTimeout(done, 50))")
        dark = window.ask(PLOTS)
        picture = window("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        (folder / "report.png").write_bytes(base64.b64decode(picture))
        return light, dark, window.errors


def test_every_plot_is_there_and_the_browser_has_nothing_to_say(seen):
    light, dark, errors = seen
    wanted = ["throughput", "backlog", "wait", "run", "workers", "types", "slowest", "flow-0"]
    assert sorted(light["ids"]) == sorted(dark["ids"]) == sorted(wanted)
    assert errors == []


def test_the_plots_show_the_figures_of_the_json(seen):
    figures, shown = small_figures(), dict(zip(seen[0]["ids"], seen[0]["shown"], strict=True))
    for plot, names in {
        "throughput": ("completed", "retried", "failed", "stopped", "released"),
        "backlog": ("enqueued", "waiting"),
        "wait": ("p50", "p95", "p99"),
        "run": ("p50", "p95", "p99"),
    }.items():
        assert {trace["name"]: (trace["x"], trace["y"]) for trace in shown[plot]} == {
            name: (figures[plot]["time"], figures[plot][name]) for name in names
        }
    assert shown["workers"][0]["x"] == figures["workers"]["busy_seconds"]
    assert [trace["y"] for trace in shown["types"]] == [[10.0, 25.0], [10.0, 0.0]]
    assert shown["slowest"][0]["x"] == [9.75]
    waits, runs = shown["flow-0"]
    assert (waits["base"], waits["x"]) == ([0.0, 6.0], [1.0, 2.0])
    assert (runs["base"], runs["x"]) == ([1.0, 8.0], [5.0, 4.0])


@pytest.mark.parametrize("width", [420, 800])
def test_nothing_leaves_a_narrow_window(tmp_path, width):
    page = tmp_path / "report.html"
    page.write_text(report_page(long_figures()), encoding="utf-8")
    with browser(tmp_path) as window:
        window(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        window.open(page)
        window.ask(PLOTS)
        found = window.ask(OUTSIDE)
        bars = window.ask("document.querySelectorAll('#workers .bars .point').length")
        labels = window.ask("new Set(document.getElementById('workers').data[0].y).size")
        picture = window("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        (tmp_path / "report.png").write_bytes(base64.b64decode(picture))
    assert (found["wide"], found["drawn"], found["window"]) == ([], [], width)
    assert found["page"] <= width
    assert (bars, labels) == (20, 20)  # names that are shortened do not become one


def test_no_line_is_drawn_across_idle_time():
    series = {
        "time": ["2026-11-16T09:00", "2026-11-16T10:00", "2026-11-17T09:00"],
        "n": [1, 2, 3],
        "p50": [0.1, 0.2, 0.3],
    }
    assert with_gaps(series, 3600) == {
        "time": ["2026-11-16T09:00", "2026-11-16T10:00", "2026-11-16T11:00", "2026-11-17T09:00"],
        "n": [1, 2, 0, 3],
        "p50": [0.1, 0.2, None, 0.3],
    }
    assert with_gaps({"time": [], "n": [], "p50": []}, 1) == {"time": [], "n": [], "p50": []}
    fine = {"time": ["2026-11-16T09:00", "2026-11-16T09:00:05", "2026-11-16T09:00:20"], "n": [1, 1, 1]}
    assert with_gaps(fine, 5)["time"][2] == "2026-11-16T09:00:10"


def test_failures_are_grouped_by_what_their_messages_have_in_common(spark):
    messages = [
        *(f"order {number} of customer 42 not found" for number in range(3)),
        "timeout after 1.5 s at 0x7f8a\n\nTraceback (most recent call last): 1",
        "timeout after 30 s at 0x11\n\nTraceback (most recent call last): 2",
        "job 6e8bc430-9c3a-11d9-9669-0800200c9a66 is unknown",
        "job 00000000-0000-0000-0000-0000000000ff is unknown",
        "commit deadbeef01 failed",
        "commit 0123456789abcdef failed",
        "decade failed",
    ]
    rows = [
        (
            "s",
            f"job-{number // 2}",
            "b" if number else "a",
            message,
            "temporary",
            "failed_retry",
            False,
            number,
        )
        for number, message in enumerate(messages)
    ]
    rows += [("s", "x", "a", "the wave was given up", None, "failed_retry", True, 0)]
    rows += [("s", "y", "a", None, None, "completed", False, 0)]
    attempts = spark.createDataFrame(
        rows,
        "source string, job_id string, type string, error_message string, error_category string,"
        " outcome string, released boolean, at long",
    ).selectExpr("*", "timestamp_seconds(1700000000 + at) AS ended_at")
    groups = error_groups(attempts)
    assert [(group["message"], group["attempts"]) for group in groups] == [
        ("order <n> of customer <n> not found", 3),
        ("commit <hex> failed", 2),
        ("job <id> is unknown", 2),
        ("timeout after <n> s at <hex>", 2),
        ("decade failed", 1),
    ]
    first = groups[0]
    assert (first["jobs"], first["failed"], first["types"], first["example"]) == (2, 0, ["a", "b"], "job-1")
    assert first["category"] == "temporary"


def test_waves_count_once_and_those_that_were_given_up_are_not_tried_again(spark, sqlite_url, tmp_path):
    with penstock.connect(sqlite_url) as queue:
        queue.submit_many([{"type": "score", "payload": {"text": "x"}}] * 200)

    def wrong(frame):
        return frame.select("id", "attempt", "nothing")

    def right(frame):
        return frame.select("id", "attempt", F.length("text").alias("score"))

    with pytest.raises(AnalysisException):
        run_frames(spark, sqlite_url, wrong, type="score", schema="text string")
    took = run_frames(spark, sqlite_url, right, type="score", schema="text string").seconds
    sync(spark, sqlite_url, tmp_path / "lake")
    figures = report_figures(spark, tmp_path / "lake")
    summary = figures["summary"]
    assert (summary["completed"], summary["retried"], summary["released"]) == (200, 0, 200)
    assert sum(figures["throughput"]["released"]) == 200
    assert sum(figures["throughput"]["retried"]) == sum(figures["throughput"]["stopped"]) == 0
    assert figures["errors"] == []
    (busy,) = [
        each for each in figures["workers"]["busy_seconds"] if each == max(figures["workers"]["busy_seconds"])
    ]
    assert (
        0 < busy <= took + 60
    )  # the first wave has its own time; 200 jobs of some seconds each would be far more
    assert summary["busy_seconds"] == pytest.approx(sum(figures["workers"]["busy_seconds"]))


def test_what_jobs_brought_along_is_text(seen):
    assert NASTY in seen[0]["text"]


def test_it_is_light_or_dark_as_the_reader_likes(seen):
    assert seen[0]["back"] != seen[1]["back"]


def test_the_page_needs_nothing_from_elsewhere():
    page = report_page(small_figures())
    assert "default-src 'none'" in page
    assert page.count("<script") == 3
    assert len(page) < 6_000_000


def test_figures_of_a_lake_are_plain_json_and_agree_with_each_other(spark, story):
    figures = json.loads(json.dumps(report_figures(spark, story["lake"]), allow_nan=False))
    assert figures.keys() == small_figures().keys()
    assert figures["summary"].keys() == small_figures()["summary"].keys()
    assert figures["events"] == sum(len(store.entries()) for store in story["stores"])
    ended = sum(sum(figures["throughput"][name]) for name in OUTCOMES)
    assert ended == figures["summary"]["attempts"] == sum(figures["types"]["attempts"]) > 0
    assert sum(figures["workers"]["attempts"]) == ended
    assert figures["backlog"]["waiting"][-1] == figures["summary"]["waiting"]
    assert len(figures["slowest"]) > 1
    assert figures["flows"]
    runs = [row["run_seconds"] for row in figures["slowest"]]
    assert runs == sorted(runs, reverse=True)
    report_page(figures)


def test_no_lake_no_report(spark, tmp_path):
    with pytest.raises(InvalidArgumentError, match="no lake"):
        report_figures(spark, tmp_path / "nothing")


def test_a_short_history_is_drawn_by_the_second_and_a_long_one_by_the_hour():
    assert fine_step(0) == fine_step(60) == (1, "second")
    assert fine_step(61) == (5, "5 seconds")
    assert fine_step(3600) == (60, "minute")
    assert fine_step(5 * 3600) == (300, "5 minutes")
    assert fine_step(5 * 3600 + 1) is None


def test_moments_of_whole_minutes_have_no_seconds():
    assert moment(1_700_000_040_000_000) == "2023-11-14T22:14"
    assert moment(1_700_000_041_500_000) == "2023-11-14T22:14:01"
    assert moment(None) is None


def test_the_figures_of_seconds_add_up_to_those_of_hours(spark, story):
    lake = story["lake"]
    attempts, events = read_table(spark, lake, "attempts"), read_table(spark, lake, "events")
    fine = short_figures(attempts, events, 1)
    figures = report_figures(spark, lake)
    for name in OUTCOMES:
        assert sum(fine["throughput"][name]) == sum(figures["throughput"][name])
    assert sum(fine["backlog"]["enqueued"]) == sum(figures["backlog"]["enqueued"])
    assert fine["backlog"]["waiting"][-1] == figures["backlog"]["waiting"][-1]
    for what in ("wait", "run"):
        assert sum(fine[what]["n"]) == sum(figures[what]["n"])
        assert fine[what].keys() == figures[what].keys()
    assert all(fine[part]["time"] == sorted(fine[part]["time"]) for part in fine)
