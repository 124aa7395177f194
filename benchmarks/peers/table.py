"""The Markdown table: a row per workload, store and product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.figures import STORES, TIMES, WORKLOADS, Line, Spread

BEGIN = "<!-- make bench-peers: begin -->"
END = "<!-- make bench-peers: end -->"

_HEADINGS = (
    "Workload", "Store", "Product", "Figure", "of raw", "Penstock's", "Penstock to it", "What holds at this figure",
)  # fmt: skip


def markdown(
    lines: Sequence[Line],
    about: Mapping[str, str],
    facts: Mapping[str, str],
    missing: Mapping[str, str],
    note: str = "",
) -> str:
    """Return the table with what must be known to read it.

    Args:
        about: what each product guarantees, by its name.
        facts: the machine, versions and settings.
        missing: why products were left out, by name.
        note: a sentence before everything, such as that the run was a quick one.
    """
    parts = [note] if note else []
    parts.append("\n".join(f"- {name}: {value}" for name, value in facts.items()))
    rows = [_row(line, about) for name in WORKLOADS for line in lines if line.workload == name]
    table = [_cells(_HEADINGS), _cells(["---"] * len(_HEADINGS)), *map(_cells, rows)]
    parts.append("\n".join(table))
    if any(line.disturbed for line in lines):
        parts.append("† Other processes had more of the machine than allowed, in each repeated run, too.")
    if missing:
        parts.append("\n".join(f"- {name} was left out: {why}" for name, why in missing.items()))
    return "\n\n".join(parts) + "\n"


def replace_table(page: str, text: str) -> str:
    """Return a page with the text between its two marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def short_name(workload: str) -> str:
    """Return W1c for w1c."""
    return f"W{workload[1:]}"


def figure(value: float, workload: str) -> str:
    """Return a figure with its unit."""
    if workload in TIMES:
        return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.3g}/s"


def _row(line: Line, about: Mapping[str, str]) -> list[str]:
    name = f"**{line.product}**" if line.is_ours else line.product
    head = [short_name(line.workload), STORES[line.store], name]
    if line.value is None:
        return [*head, "failed", "", "", "", line.error]
    shown = figure(line.value.median, line.workload)
    if "p99" in line.extra:
        shown += f", p99 {figure(line.extra['p99'], line.workload)}"
    marks = "†" if line.disturbed else ""
    held = about.get(line.product, "")
    if line.error:
        held += f"; {line.rounds} rounds, the others failed: {line.error}"
    return [
        *head,
        shown + marks,
        _ratio(line.to_raw),
        _by_store(line, {store: figure(each.median, line.workload) for store, each in line.ours.items()}),
        _by_store(line, {store: _ratio(each) for store, each in line.advantage.items()}),
        held,
    ]


def _by_store(line: Line, shown: Mapping[str, str]) -> str:
    if line.store in shown:
        return shown[line.store]
    return "; ".join(f"{STORES[store]} {text}" for store, text in shown.items())


def _ratio(found: Spread | None) -> str:
    if found is None:
        return ""
    median, least, most = (_short(each) for each in found)
    return median if least == most else f"{median} ({least} to {most})"


def _short(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"
