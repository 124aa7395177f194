"""Draw the life of a job and list its moves, from the table in `penstock.lifecycle`.

    python tools/lifecycle_docs.py            write docs/assets/job-life.svg and the table in docs/concepts/job-life.md
    python tools/lifecycle_docs.py --check    write nothing; exit 1 if one of them is out of date

Boxes and lines have fixed places, so that the picture stays the same picture when a verb is added. A pair of statuses
that the table has and the picture has no line for is an error that names it, and so is the opposite.

    eligible │ in flight │ lanes │ labels │ final │ corrections

Each status has one lane, in its colour; every line to a final status leaves the lane in a row of its own, which has
room for its label.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from penstock.job import ELIGIBLE, FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import LATE_MOVES, MOVES, Verb

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "assets" / "job-life.svg"
PAGE = ROOT / "docs" / "concepts" / "job-life.md"
BEGIN, END = "<!-- lifecycle:begin -->", "<!-- lifecycle:end -->"

S = JobStatus
Pair = tuple[JobStatus | None, JobStatus]


class Point(NamedTuple):
    """A place in the picture."""

    x: float
    y: float


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def overlaps(self, other: "Box") -> bool:
        return (
            self.x < other.right and other.x < self.right and self.y < other.bottom and other.y < self.bottom
        )


class Line(NamedTuple):
    """An arrow: its corners, and where its label begins."""

    points: tuple[Point, ...]
    label_at: Point


# -- places ------------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 1170, 956
LETTER = 7.0  # about the width of a letter, in a wide font; labels are checked for overlaps with it
ROW, GROUP_GAP, FIRST_ROW = 28, 30, 124
MAIN_ROW = 210  # the straight way through the picture: enqueued, claimed, completed
FINAL_X, FINAL_WIDTH = 868, 172
LABEL_X = 610

# The rows of each final status: where its lines come from, from top to bottom.
ROWS: Final[Mapping[JobStatus, tuple[JobStatus, ...]]] = {
    S.UNSCHEDULED: (S.INITIAL_PENDING, S.UNKNOWN_RETRY),
    S.COMPLETED: (S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY),
    S.FAILED: (S.INITIAL_PENDING, S.RUNNING, S.UNKNOWN_RETRY),
    S.DEAD_LETTER: (S.INITIAL_PENDING, S.RUNNING, S.FAILED_RETRY, S.UNKNOWN_RETRY, S.CANCELLING),
    S.STOPPED: (S.RUNNING, S.FAILED_RETRY, S.UNKNOWN_RETRY, S.CANCELLING),
    S.UNKNOWN_STOPPED: (S.RUNNING, S.UNKNOWN_RETRY, S.CANCELLING),
}


def _place_finals() -> tuple[dict[JobStatus, Box], dict[tuple[JobStatus, JobStatus], float]]:
    """Return a box for every final status, as high as its rows, and the height of each row."""
    boxes: dict[JobStatus, Box] = {}
    heights: dict[tuple[JobStatus, JobStatus], float] = {}
    y: float = FIRST_ROW
    for status, sources in ROWS.items():
        boxes[status] = Box(FINAL_X, y - 18, FINAL_WIDTH, ROW * len(sources) + 8)
        for source in sources:
            heights[source, status] = y
            y += ROW
        y += GROUP_GAP
    return boxes, heights


_FINAL_BOXES, _ROW_HEIGHTS = _place_finals()
BOXES: Final[Mapping[JobStatus, Box]] = {
    **_FINAL_BOXES,
    S.INITIAL_PENDING: Box(44, 184, 150, 52),
    S.FAILED_RETRY: Box(44, 382, 150, 64),
    S.UNKNOWN_RETRY: Box(44, 596, 150, 76),
    S.RUNNING: Box(364, 184, 116, 262),
    S.CANCELLING: Box(364, 706, 116, 60),
}
BANDS: Final = {
    "eligible": ("can be claimed", Box(30, 56, 178, 782)),
    "in flight": ("hold a slot", Box(350, 56, 144, 782)),
    "final": ("have ended", Box(854, 56, 200, 782)),
}

# How each status reaches its lane, and where that lies.
LANES: Final[Mapping[JobStatus, tuple[tuple[Point, ...], float]]] = {
    S.UNKNOWN_RETRY: ((Point(194, 658),), 516),
    S.FAILED_RETRY: ((Point(160, 446), Point(160, 474)), 536),
    S.CANCELLING: ((Point(480, 736),), 556),
    S.INITIAL_PENDING: ((Point(119, 184), Point(119, 124)), 576),
    S.RUNNING: ((Point(480, MAIN_ROW),), 596),
}

SHORT: Final = {
    Verb.ENQUEUE_UNIQUE: "enqueue",
    Verb.ACKNOWLEDGE: "acknowledge",
    Verb.MARK_UNKNOWN_STOPPED: "mark unknown",
    Verb.STOP_WITH_RETRY: "stop",
    Verb.UNRESPONSIVE: "lose",
    Verb.RESET: "lose",
    Verb.TIME_OUT: "time out",
}
LEGEND: Final = (
    "thick: the usual way · dashed: a correction by update_status · colour: the status a line leaves"
)
MAIN_PATH: Final[frozenset[Pair]] = frozenset(
    {(None, S.INITIAL_PENDING), (S.INITIAL_PENDING, S.RUNNING), (S.RUNNING, S.COMPLETED)}
)


def _lines() -> dict[Pair, Line]:
    lines: dict[Pair, Line] = {}
    for (source, target), y in _ROW_HEIGHTS.items():
        start, lane = LANES[source]
        corners = (*start, Point(lane, start[-1].y), Point(lane, y), Point(FINAL_X, y))
        lines[source, target] = Line(corners, Point(LABEL_X, y - 5))
    return lines | _lines_on_the_left() | _lines_out_of_finals()


def _lines_on_the_left() -> dict[Pair, Line]:
    def line(label_x: float, label_y: float, *points: tuple[float, float]) -> Line:
        return Line(tuple(Point(*point) for point in points), Point(label_x, label_y))

    return {
        (None, S.INITIAL_PENDING): line(4, MAIN_ROW - 34, (8, MAIN_ROW), (44, MAIN_ROW)),
        (S.INITIAL_PENDING, S.RUNNING): line(222, MAIN_ROW - 7, (194, MAIN_ROW), (364, MAIN_ROW)),
        (S.FAILED_RETRY, S.RUNNING): line(200, 393, (194, 400), (364, 400)),
        (S.RUNNING, S.FAILED_RETRY): line(200, 422, (364, 428), (194, 428)),
        (S.UNKNOWN_RETRY, S.RUNNING): line(222, 605, (194, 612), (384, 612), (384, 446)),
        (S.RUNNING, S.UNKNOWN_RETRY): line(222, 630, (408, 446), (408, 636), (194, 636)),
        (S.RUNNING, S.CANCELLING): line(446, 576, (440, 446), (440, 706)),
        (S.UNKNOWN_RETRY, S.FAILED_RETRY): line(84, 526, (76, 596), (76, 446)),
        (S.UNKNOWN_RETRY, S.CANCELLING): line(222, 733, (160, 672), (160, 740), (364, 740)),
    }


def _lines_out_of_finals() -> dict[Pair, Line]:
    """Return the ways back: a restart, late results, and the corrections of what was unknown."""
    right = float(FINAL_X + FINAL_WIDTH)
    unknown = BOXES[S.UNKNOWN_STOPPED]
    stopped, completed, unscheduled = BOXES[S.STOPPED], BOXES[S.COMPLETED], BOXES[S.UNSCHEDULED]

    def beside(x: float, start_y: float, end_y: float, label: Point) -> Line:
        return Line((Point(right, start_y), Point(x, start_y), Point(x, end_y), Point(right, end_y)), label)

    def below(start_x: float, y: float, *end: Point) -> Line:
        first = end[0]
        return Line(
            (Point(start_x, unknown.bottom), Point(start_x, y), Point(first.x, y), *end),
            Point(LABEL_X, y - 5),
        )

    restart = (
        Point(right, stopped.y + 20),
        Point(1154, stopped.y + 20),
        Point(1154, 36),
        Point(460, 36),
        Point(460, BOXES[S.RUNNING].y),
    )
    middle = completed.y + completed.height / 2
    dead = BOXES[S.DEAD_LETTER].y + 20
    top = unscheduled.y + 32
    low = stopped.bottom - 20
    return {
        (S.STOPPED, S.RUNNING): Line(restart, Point(LABEL_X, 30)),
        (S.DEAD_LETTER, S.COMPLETED): beside(1088, dead, completed.bottom - 14, Point(right + 14, dead - 5)),
        (S.UNKNOWN_STOPPED, S.STOPPED): beside(1104, unknown.y + 16, low, Point(right + 14, low - 5)),
        (S.UNKNOWN_STOPPED, S.COMPLETED): beside(1120, unknown.y + 36, middle, Point(right + 14, middle - 5)),
        (S.UNKNOWN_STOPPED, S.UNSCHEDULED): beside(1136, unknown.y + 56, top, Point(right + 14, top - 5)),
        (S.UNKNOWN_STOPPED, S.CANCELLING): below(896, 858, Point(422, BOXES[S.CANCELLING].bottom)),
        (S.UNKNOWN_STOPPED, S.UNKNOWN_RETRY): below(942, 884, Point(110, BOXES[S.UNKNOWN_RETRY].bottom)),
        (S.UNKNOWN_STOPPED, S.FAILED_RETRY): below(988, 910, Point(18, 414), Point(44, 414)),
    }


# -- what the table says -----------------------------------------------------------------------------------------------


def pairs() -> dict[Pair, list[Verb]]:
    """Return every (source, target) of the table with the verbs that lead there."""
    found: dict[Pair, list[Verb]] = {}
    for move in MOVES:
        found.setdefault((move.source, move.target), []).append(move.verb)
    for late in LATE_MOVES:
        found.setdefault((late.source, late.target), []).append(late.verb)
    return found


def lines() -> dict[Pair, Line]:
    """Return one line for every pair of the table, or raise naming the pairs without one."""
    drawn, wanted = _lines(), pairs()
    problems = [f"no line for {_name(pair)}" for pair in wanted if pair not in drawn]
    problems += [f"a line for {_name(pair)}, which is no move" for pair in drawn if pair not in wanted]
    if problems:
        raise LookupError("; ".join(problems))
    return {pair: drawn[pair] for pair in wanted}


def is_correction(verbs: Sequence[Verb]) -> bool:
    """Whether nothing but `update_status` makes the move."""
    return set(verbs) == {Verb.UPDATE_STATUS}


def label_of(verbs: Sequence[Verb]) -> str:
    """Return the short names of verbs; `update_status` is named only where it is alone."""
    if is_correction(verbs):
        return "correct"
    return ", ".join(
        dict.fromkeys(SHORT.get(verb, str(verb)) for verb in verbs if verb is not Verb.UPDATE_STATUS)
    )


def labels() -> dict[Pair, tuple[str, Box]]:
    """Return each label with the room it takes."""
    verbs = pairs()
    return {
        pair: (
            label_of(verbs[pair]),
            Box(line.label_at.x, line.label_at.y - 11, LETTER * len(label_of(verbs[pair])), 14),
        )
        for pair, line in lines().items()
    }


def _name(pair: Pair) -> str:
    source, target = pair
    return f"{source.name if source else 'nothing'} → {target.name}"


# -- the picture -------------------------------------------------------------------------------------------------------

STYLE: Final = """
  svg { --paper: #ffffff; --ink: #1f2933; --quiet: #52606d; --band: #f3f5f8; --edge: #cbd2d9;
        --new: #1d6fd1; --run: #16794b; --stop: #b3261e; --retry: #a85b00; --lost: #7a3fb5; --fix: #6b7785; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #1b1f27; --ink: #e4e7eb; --quiet: #a3adba; --band: #242a34; --edge: #47515f;
          --new: #6cb0ff; --run: #58c58e; --stop: #ff8b83; --retry: #f0a95a; --lost: #c79bff; --fix: #96a2b1; }
  }
  text { font: 14px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
  .title { font-weight: 600; } .quiet { fill: var(--quiet); font-size: 13px; }
  .status { font-weight: 600; font-size: 13.5px; text-anchor: middle; dominant-baseline: central; }
  .paper { fill: var(--paper); } .band { fill: var(--band); }
  .box { fill: var(--paper); stroke: var(--c); stroke-width: 2; }
  .halo { fill: none; stroke: var(--paper); stroke-width: 6; }
  .line { fill: none; stroke: var(--c); stroke-width: 1.6; } .tip { fill: var(--c); }
  .main { stroke-width: 4; } .fix { stroke-dasharray: 5 4; }
  .label { fill: var(--c); }
"""
COLOURS: Final[Mapping[JobStatus | None, str]] = {
    None: "new",
    S.INITIAL_PENDING: "new",
    S.RUNNING: "run",
    S.CANCELLING: "stop",
    S.FAILED_RETRY: "retry",
    S.UNKNOWN_RETRY: "lost",
    S.UNKNOWN_STOPPED: "fix",
    S.STOPPED: "stop",
    S.DEAD_LETTER: "retry",
}


def picture() -> str:
    """Return the SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<!-- Made by tools/lifecycle_docs.py from the table in penstock.lifecycle; do not edit. -->",
        "<title>The life of a job</title>",
        f"<desc>{escape(_description())}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *_bands(),
        *_arrows(),
        *_boxes(),
        _text("quiet", Point(30, HEIGHT - 14), LEGEND),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _description() -> str:
    return "; ".join(f"{_name(pair)}: {label_of(verbs)}" for pair, verbs in pairs().items())


def _bands() -> Iterator[str]:
    for name, (meaning, box) in BANDS.items():
        yield _rectangle("band", box, radius=8)
        yield _text("title", Point(box.x + 10, box.y + 22), name)
        yield _text("quiet", Point(box.x + 10, box.y + 40), meaning)


def _boxes() -> Iterator[str]:
    kinds = {S.COMPLETED: "run", S.FAILED: "retry", S.DEAD_LETTER: "retry", S.UNSCHEDULED: "stop"}
    for status, box in BOXES.items():
        colour = COLOURS.get(status) or kinds[status]
        yield f'<g style="--c: var(--{colour})">{_rectangle("box", box, radius=6)}'
        yield _text("status", Point(box.x + box.width / 2, box.y + box.height / 2), status.name) + "</g>"


def _arrows() -> Iterator[str]:
    """Yield the lines of one source after another: first their halos, so that crossings stay readable."""
    drawn, verbs = lines(), pairs()
    for source in dict.fromkeys(pair[0] for pair in drawn):
        own = {pair: line for pair, line in drawn.items() if pair[0] is source}
        yield f'<g style="--c: var(--{COLOURS[source]})">'
        yield from (f'<path class="halo" d="{_path(line.points)}"/>' for line in own.values())
        for pair, line in own.items():
            kinds = ["line"] + ["main"] * (pair in MAIN_PATH) + ["fix"] * is_correction(verbs[pair])
            yield f'<path class="{" ".join(kinds)}" d="{_path(line.points)}"/>'
            yield _tip(line.points, big=pair in MAIN_PATH)
            yield _text("label", line.label_at, label_of(verbs[pair]))
        yield "</g>"


def _path(points: Sequence[Point], radius: float = 7) -> str:
    """Return a path with rounded corners; points on one straight line are no corners."""
    corners = [points[0]]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        if not (before.x == here.x == after.x or before.y == here.y == after.y):
            corners.append(here)
    corners.append(points[-1])
    text = f"M{_at(corners[0])}"
    for before, here, after in zip(corners, corners[1:], corners[2:], strict=False):
        text += f" L{_at(_towards(here, before, radius))} Q{_at(here)} {_at(_towards(here, after, radius))}"
    end = _towards(corners[-1], corners[-2], 5)  # the tip covers the rest
    return f"{text} L{_at(end)}"


def _towards(here: Point, there: Point, distance: float) -> Point:
    length = abs(there.x - here.x) + abs(there.y - here.y)
    share = min(distance / length, 0.5) if length else 0.0
    return Point(here.x + (there.x - here.x) * share, here.y + (there.y - here.y) * share)


def _tip(points: Sequence[Point], *, big: bool) -> str:
    end = points[-1]
    before = next(point for point in reversed(points) if point != end)
    back = _towards(end, before, 13 if big else 9)
    wide = 7.0 if big else 4.5
    along_x = end.y == before.y
    sides = (
        (Point(back.x, back.y - wide), Point(back.x, back.y + wide))
        if along_x
        else (Point(back.x - wide, back.y), Point(back.x + wide, back.y))
    )
    return f'<path class="tip" d="M{_at(end)} L{_at(sides[0])} L{_at(sides[1])} Z"/>'


def _at(point: Point) -> str:
    return f"{point.x:g},{point.y:g}"


def _rectangle(kind: str, box: Box, radius: int) -> str:
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    return f'<rect class="{kind}" {place} rx="{radius}"/>'


def _text(kind: str, at: Point, text: str) -> str:
    return f'<text class="{kind}" x="{at.x:g}" y="{at.y:g}">{escape(text)}</text>'


# -- the table ---------------------------------------------------------------------------------------------------------


def table() -> str:
    """Return the moves as a Markdown table, statuses that a verb treats alike in one row."""
    rows = ["| Verb | From | To | Effect |", "| --- | --- | --- | --- |"]
    for verb in dict.fromkeys(move.verb for move in MOVES):
        ends: dict[JobStatus | None, list[JobStatus]] = {}
        for move in MOVES:
            if move.verb is verb:
                ends.setdefault(move.source, []).append(move.target)
        alike: dict[tuple[JobStatus, ...], list[str]] = {}
        for source, reached in ends.items():
            alike.setdefault(tuple(reached), []).append(source.name if source else "")
        effect = next(move.effect for move in MOVES if move.verb is verb)
        for targets, sources in alike.items():
            names = ", ".join(target.name for target in targets)
            rows.append(f"| `{verb}` | {', '.join(sources)} | {names} | {effect} |")
        rows += [
            f"| `{verb}` | {late.source.name} | {late.target.name} | {late.effect} |"
            for late in LATE_MOVES
            if late.verb is verb
        ]
    return "\n".join(rows)


def page_with_table(page: str) -> str:
    """Return the page with the table between its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise LookupError(f"{PAGE.name} needs the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check both files and return the exit code."""
    parser = argparse.ArgumentParser(description="Draw the life of a job and list its moves.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if something is out of date"
    )
    options = parser.parse_args(arguments)
    assert {*ELIGIBLE, *IN_FLIGHT, *FINAL} == set(JobStatus)
    wanted = {PICTURE: picture(), PAGE: page_with_table(PAGE.read_text(encoding="utf-8"))}
    stale = [
        file for file, text in wanted.items() if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in stale:
        if options.check:
            print(
                f"{file.relative_to(ROOT)} is out of date: run python tools/lifecycle_docs.py",
                file=sys.stderr,
            )
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[file], encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
