"""`make bench-peers`: ratios, spreads, the rule about disturbed runs, turns, and the table. Nothing is measured here."""

import contextlib
import struct

import pytest
from benchmarks.peers import catalogue, environments, figures, measuring, plot, product, rounds, table
from benchmarks.peers.disturbance import Usage, own_ticks, parse_stat, run_undisturbed, share_of_others
from benchmarks.peers.figures import Run, Spread, summarise

LIMITS = rounds.Limits(share=0.1, repeats=2)


class Peer(product.Product):
    """Stands for a product in plans; it is never run."""

    name, stores, guarantees = "Peer", ("sqlite", "postgres"), "ack after run"

    def open(self): ...
    def submit(self, number): ...
    def count_left(self): ...
    def work(self, workload): ...


class Ours(Peer):
    name, stores, isolated_jobs, has_past = figures.OUR_NAME, ("sqlite", "postgres"), 2000, True


class OnRedis(Peer):
    name, stores = "OnRedis", ("redis",)


class Places:
    @contextlib.contextmanager
    def empty(self, store):
        yield f"/{store}"


def run(product_name, value, *, number=1, workload="w1", store="sqlite", **more):
    return Run(number, workload, store, product_name, value, **more)


# -- ratios -----------------------------------------------------------------------------------------------------------


def test_a_ratio_is_of_the_same_round_and_its_spread_is_over_rounds():
    runs = [
        run("Penstock", 100.0, raw=200.0), run("Peer", 50.0, raw=100.0),
        run("Penstock", 300.0, number=2, raw=300.0), run("Peer", 100.0, number=2, raw=400.0),
        run("Penstock", 120.0, number=3, raw=200.0), run("Peer", 120.0, number=3, raw=200.0),
    ]  # fmt: skip
    ours, peer = summarise(runs)
    assert peer.value == Spread(100.0, 50.0, 120.0)
    assert peer.advantage == {"sqlite": Spread(2.0, 1.0, 3.0)}
    assert peer.ours == {"sqlite": Spread(120.0, 100.0, 300.0)}
    assert peer.to_raw == Spread(0.5, 0.25, 0.6)
    assert ours.advantage == {}
    assert ours.to_raw == Spread(0.6, 0.5, 1.0)


def test_of_times_the_smaller_one_is_the_faster():
    assert figures.advantage("w4", 1.0, 5.0) == 5.0
    assert figures.advantage("w1", 1.0, 5.0) == 0.2
    assert figures.advantage("w4", 0.0, 5.0) is None


def test_a_product_on_redis_is_compared_with_both_stores_of_ours():
    runs = [run("Penstock", 10.0), run("Penstock", 30.0, store="postgres"), run("RQ", 5.0, store="redis")]
    assert {store: each.median for store, each in summarise(runs)[2].advantage.items()} == {
        "sqlite": 2.0, "postgres": 6.0,
    }  # fmt: skip


def test_a_failed_round_is_left_out_of_the_figures_and_its_reason_is_kept():
    runs = [run("Penstock", 10.0), run("Peer", None, error="no table"), run("Penstock", 10.0, number=2)]
    runs.append(run("Peer", 5.0, number=2))
    peer = summarise(runs)[1]
    assert (peer.value, peer.rounds, peer.error) == (Spread(5.0, 5.0, 5.0), 1, "no table")
    assert summarise(runs[:2])[1].value is None


# -- disturbed runs ---------------------------------------------------------------------------------------------------


def usages(*shares):
    """Return a meter that shows, for each run, others with this share of two processors for a second."""
    moments, total = [], 0.0
    for share in shares:
        moments += [Usage(total, 0.0, 0.0), Usage(total + 2.0, 2.0 * share + 0.5, 0.5)]
        total += 2.0
    return iter(moments).__next__


def test_the_share_of_others_is_what_was_busy_without_us():
    assert share_of_others(Usage(10, 4, 1), Usage(14, 7, 3)) == 0.25
    assert share_of_others(Usage(10, 4, 1), Usage(14, 5, 3)) == 0.0  # clocks that tick at different times
    assert share_of_others(Usage(10, 4, 1), Usage(10, 4, 1)) == 0.0


def test_a_quiet_run_is_taken_at_once():
    judged = run_undisturbed(iter("abc").__next__, usages(0.05), 0.1, 2)
    assert (judged.answer, judged.repeats, judged.is_disturbed) == ("a", 0, False)


def test_a_disturbed_run_is_repeated_until_one_is_quiet():
    judged = run_undisturbed(iter("abc").__next__, usages(0.5, 0.01), 0.1, 2)
    assert (judged.answer, judged.repeats, judged.is_disturbed) == ("b", 1, False)


def test_the_least_disturbed_of_three_is_taken_and_marked():
    judged = run_undisturbed(iter("abc").__next__, usages(0.5, 0.2, 0.3), 0.1, 2)
    assert (judged.answer, judged.repeats, judged.is_disturbed) == ("b", 2, True)
    assert judged.share == pytest.approx(0.2)


def test_a_failure_is_not_repeated():
    judged = run_undisturbed(iter("abc").__next__, usages(0.5), 0.1, 2, is_final=lambda _: True)
    assert (judged.answer, judged.repeats) == ("a", 0)


def test_nothing_is_repeated_where_processor_time_is_not_known():
    judged = run_undisturbed(iter("abc").__next__, lambda: None, 0.1, 2)
    assert (judged.answer, judged.share, judged.is_disturbed) == ("a", None, False)


def test_time_of_descendants_and_of_kernel_threads_is_not_that_of_others():
    line = "{} (a) name) S {} 1 1 0 -1 0 0 0 0 0 {} 5 1 2 20 0 1 0 0 0 0"
    found = {
        pid: parse_stat(line.format(pid, parent, ticks))
        for pid, parent, ticks in [(2, 0, 0), (5, 2, 1), (10, 1, 10), (11, 10, 20), (12, 11, 30), (20, 1, 99)]
    }
    assert found[11] == (10, 28, False)
    assert own_ticks(found, 10) == 10 + 20 + 30 + 3 * 8 + 0 + 1 + 2 * 8


# -- turns ------------------------------------------------------------------------------------------------------------


def test_products_take_turns_in_each_round_and_another_one_begins():
    turns = rounds.plan(2, ["w1", "w3p"], ["sqlite", "redis"], [Ours, Peer, OnRedis])
    assert [(turn.round, turn.workload, turn.store, turn.product.name) for turn in turns] == [
        (1, "w1", "sqlite", "Penstock"), (1, "w1", "sqlite", "Peer"), (1, "w1", "redis", "OnRedis"),
        (1, "w3p", "sqlite", "Penstock"),
        (2, "w1", "sqlite", "Peer"), (2, "w1", "sqlite", "Penstock"), (2, "w1", "redis", "OnRedis"),
        (2, "w3p", "sqlite", "Penstock"),
    ]  # fmt: skip


def test_the_raw_figure_is_the_mean_of_the_probes_before_and_after():
    runs = rounds.with_raw([run("a", 1.0), run("b", 1.0), run("c", 1.0)], [10.0, 20.0, None, None])
    assert [each.raw for each in runs] == [15.0, 20.0, None]


def measured(answers, workload="w1", **limits):
    """Return the runs of one round of Penstock and Peer on SQLite, and what was called."""
    calls = []

    def call(environment, verb, module, store, place, *rest, **_options):
        calls.append((verb, module.rpartition(".")[2], place, *rest))
        return dict(answers.get(verb, {}))

    runner = rounds.Rounds(
        Places(),
        rounds.Limits(**{"share": 1.0, "repeats": 0, **limits}),
        lambda _: None,
        is_quick=True,
        call=call,
    )
    with contextlib.closing(runner):
        (found,) = runner.run(rounds.plan(1, [workload], ["sqlite"], [Ours, Peer]))
    return found, calls


def test_every_turn_lies_between_two_probes_of_the_raw_store():
    found, calls = measured({"measure": {"value": 5.0, "p99": 9.0}, "probe": {"value": 10.0}})
    assert [verb for verb, *_ in calls] == ["probe", "measure", "probe", "measure", "probe"]
    assert [(each.value, each.raw, each.extra) for each in found] == [(5.0, 10.0, {"p99": 9.0})] * 2


def test_a_product_that_fails_does_not_end_the_run():
    found, _ = measured({"measure": {"error": "it broke"}, "probe": {"error": "it, too"}}, share=0.0)
    assert [(each.value, each.raw, each.error) for each in found] == [(None, None, "it broke")] * 2


def test_a_store_with_a_past_is_loaded_once_and_a_failure_to_load_it_is_told():
    found, calls = measured({"load": {"error": "no delays"}, "probe": {"value": 1.0}}, "w5")
    assert [verb for verb, *_ in calls] == ["probe", "load", "probe"]
    assert found[0].error == "RuntimeError: loading: no delays"


def test_a_missing_product_is_named_with_the_reason():
    def call(*_arguments, **_options):
        return {"error": "No package metadata was found for peer"}

    runner = rounds.Rounds(Places(), LIMITS, lambda _: None, is_quick=True, call=call)
    with pytest.raises(LookupError, match="No package metadata was found for peer"):
        runner.version(Peer)


def test_the_answer_of_a_process_is_its_last_line():
    assert rounds.read_answer('noise\n\n{"value": 3}\n', "", 0) == {"value": 3}
    assert rounds.read_answer("", "Traceback\nValueError: x", 1) == {
        "error": "its process ended with 1: Traceback / ValueError: x"
    }
    assert rounds.read_answer("17", "", 0) == {"error": "its process ended with 0: it said nothing"}


def test_a_drain_counts_only_if_every_job_ran_exactly_once():
    once = b"".join(struct.pack("<dq", float(job), job) for job in range(3))
    assert measuring._read_starts(once, 3) == {0: 0.0, 1: 1.0, 2: 2.0}
    with pytest.raises(measuring.VoidError, match="4 runs of 3 jobs: some ran twice"):
        measuring._read_starts(once + once[:16], 3)
    with pytest.raises(measuring.VoidError, match="3 of 4 jobs ran"):
        measuring._read_starts(once, 4)


@pytest.mark.slow
@pytest.mark.process
def test_our_own_side_drains_a_store_through_the_public_api(tmp_path):
    module = "benchmarks.peers.products.penstock"
    answer = rounds._child(product.OURS, "measure", module, "sqlite", str(tmp_path), "w3", "quick")
    assert answer["jobs"] == 3000
    assert answer["value"] > 0
    raw = rounds._child(
        product.OURS, "probe", "benchmarks.peers.raw_probe", "sqlite", str(tmp_path), "w3", "quick"
    )
    assert raw["value"] > 0


@pytest.mark.slow
@pytest.mark.process
def test_a_process_that_takes_too_long_is_ended():
    answer = rounds._child(product.OURS, "check", "benchmarks.peers.products.penstock", seconds=0.001)
    assert answer == {"error": "it took longer than 0 s"}


# -- products ---------------------------------------------------------------------------------------------------------


def test_every_product_says_what_it_guarantees_and_has_pins():
    products = catalogue.list_products()
    assert products[0].name == figures.OUR_NAME
    assert len({kind.name for kind in products}) == len(products) >= 13
    for kind in products:
        assert kind.guarantees
        assert set(kind.stores) <= set(figures.STORES)
        if kind.environment != product.OURS:
            pins = environments.requirements(kind.environment).read_text(encoding="utf-8").lower()
            assert f"\n{kind.package}==" in pins


def test_products_are_chosen_by_name_and_ours_is_always_among_them():
    assert [kind.name for kind in catalogue.choose_products(["HUEY"])] == ["Penstock", "Huey"]
    with pytest.raises(ValueError, match="unknown: hueyy; there are Penstock, "):
        catalogue.choose_products(["hueyy"])


def test_pins_are_exact_and_name_no_registry():
    for name in ("peers", "peers-awa", "peers-arq"):
        lines = environments.requirements(name).read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line and not line.startswith("#") and "==" not in line] == []


# -- the table and the plot -------------------------------------------------------------------------------------------

RUNS = [
    run("Penstock", 1234.5, raw=2469.0), run("Peer", 99.94, raw=2469.0, is_disturbed=True),
    run("Broken", None, error="no table | at all"),
    run("Penstock", 0.8, workload="w4", extra={"p99": 1.5}), run("Peer", 25.0, workload="w4"),
    run("Penstock", 500.0, workload="w3p"), run("RQ", 100.0, workload="w3p", store="redis"),
]  # fmt: skip


def test_the_table_has_both_figures_the_ratios_and_what_holds():
    text = table.markdown(
        summarise(RUNS),
        {"Peer": "at most once"},
        {"machine": "2 cores"},
        {"Oban": "no wheel"},
        "A quick run.",
    )
    lines = text.splitlines()
    assert lines[:3] == ["A quick run.", "", "- machine: 2 cores"]
    assert "| W1 | SQLite | **Penstock** | 1,234/s | 0.50 |  |  |  |" in lines
    assert "| W1 | SQLite | Peer | 99.9/s† | 0.04 | 1,234/s | 12.4 | at most once |" in lines
    assert "| W1 | SQLite | Broken | failed |  |  |  | no table / at all |" in lines
    assert "| W4 | SQLite | **Penstock** | 0.80 ms, p99 1.50 ms |  |  |  |  |" in lines
    assert "| W4 | SQLite | Peer | 25 ms |  | 0.80 ms | 31.2 | at most once |" in lines
    assert "| W3p | Redis | RQ | 100/s |  | SQLite 500/s | SQLite 5.00 |  |" in lines
    assert lines[-3:] == [
        "† Other processes had more of the machine than allowed, in each repeated run, too.",
        "",
        "- Oban was left out: no wheel",
    ]


def test_a_spread_is_shown_where_rounds_differ():
    runs = [
        run("Penstock", 10.0),
        run("Peer", 5.0),
        run("Penstock", 10.0, number=2),
        run("Peer", 10.0, number=2),
    ]
    assert "| 1.50 (1.00 to 2.00) |" in table.markdown(summarise(runs), {}, {}, {})


def test_the_table_replaces_what_is_between_its_marks():
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    assert table.replace_table(page, "new\n") == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter\n"
    with pytest.raises(ValueError, match="the page has no"):
        table.replace_table("nothing", "new")
    page = (environments.ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "\n\nnew\n\n" in table.replace_table(page, "new")


def test_the_plot_shows_the_best_first_and_ours_beside_products_on_redis():
    data = {
        "lines": [line.as_json() for line in summarise(RUNS)],
        "runs": [each.as_json() for each in RUNS],
    }
    found = plot.panels(data)
    assert [bar.name for bar in found["w1", "sqlite"].bars] == ["Penstock", "Peer"]
    assert found["w1", "sqlite"].raw == 2469.0
    assert [bar.name for bar in found["w4", "sqlite"].bars] == ["Penstock", "Peer"]
    assert [bar.name for bar in found["w3p", "redis"].bars] == ["Penstock, SQLite", "RQ"]
