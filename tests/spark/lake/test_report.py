import base64
import json

import pytest
from tests.spark.lake.browser import browser

from penstock.errors import InvalidArgumentError
from penstock.spark import read_table
from penstock.spark.reporting import report_figures, report_page
from penstock.spark.reporting._short import fine_step, short_figures
from penstock.spark.reporting._values import moment

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
                ("jobs", "completed", "failed", "cancelled", "waiting", "running", "attempts", "retried"), 3
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
        "throughput": ("completed", "retried", "failed", "stopped"),
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
    ended = sum(sum(figures["throughput"][name]) for name in ("completed", "retried", "failed", "stopped"))
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
    for name in ("completed", "retried", "failed", "stopped"):
        assert sum(fine["throughput"][name]) == sum(figures["throughput"][name])
    assert sum(fine["backlog"]["enqueued"]) == sum(figures["backlog"]["enqueued"])
    assert fine["backlog"]["waiting"][-1] == figures["backlog"]["waiting"][-1]
    for what in ("wait", "run"):
        assert sum(fine[what]["n"]) == sum(figures[what]["n"])
        assert fine[what].keys() == figures[what].keys()
    assert all(fine[part]["time"] == sorted(fine[part]["time"]) for part in fine)
