"""Chains, fans and trees of jobs, as plain lists of jobs with `after` filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.errors import DependencyError, InvalidArgumentError, shown
from penstock.job import Job

__all__ = ["Flow", "chain", "fan_in", "fan_out", "flatten"]


class Flow(msgspec.Struct, frozen=True):
    """A tree of jobs: `job` runs after all its children have completed.

    `queue.enqueue_flow(flow)` stores it in one transaction, children first.

    Attributes:
        job: the parent.
        children: flows or jobs, in any number.
    """

    job: Job
    children: Sequence[Flow | Job] = ()

    def __post_init__(self) -> None:
        _jobs([self.job])
        if isinstance(self.children, str | bytes) or not isinstance(self.children, Iterable):
            raise InvalidArgumentError(
                f"children must be a sequence of Flow or Job, got {shown(self.children)}",
                field="children",
                value=self.children,
            )
        msgspec.structs.force_setattr(self, "children", tuple(self.children))
        for child in self.children:
            _node(child)


def chain(*jobs: Job) -> list[Job]:
    """Return the jobs so that each runs after the one before it; a failure ends the chain."""
    linked: list[Job] = []
    for job in _jobs(jobs):
        linked.append(_after(job, linked[-1:]))
    return linked


def fan_out(first: Job, others: Iterable[Job]) -> list[Job]:
    """Return the jobs so that all `others` run after `first`."""
    (first,) = _jobs([first])
    return [first, *(_after(job, [first]) for job in _jobs(others))]


def fan_in(firsts: Iterable[Job], last: Job) -> list[Job]:
    """Return the jobs so that `last` runs after all `firsts`."""
    before = _jobs(firsts)
    (last,) = _jobs([last])
    return [*before, _after(last, before)]


def flatten(flow: Flow, *, max_depth: int) -> list[Job]:
    """Return a tree's jobs, children before their parents, with `after` and the children's `parent_id` filled in.

    Raises:
        DependencyError: the tree is deeper than `max_depth`.
    """
    if not isinstance(flow, Flow):
        raise InvalidArgumentError(f"flow must be a Flow, got {shown(flow)}", field="flow", value=flow)
    ordered: list[Job] = []
    # (node, its parent's id, depth, whether its children were visited): no recursion, so that depth is only a number
    stack: list[tuple[Flow, str | None, int, bool]] = [(flow, None, 1, False)]
    while stack:
        node, parent_id, depth, visited = stack.pop()
        children = [_node(child) for child in node.children]
        if depth > max_depth:
            raise DependencyError(
                f"the flow is deeper than {max_depth} jobs at {shown(node.job.id)}",
                reason="depth",
                job_id=node.job.id,
            )
        if visited:
            job = _after(node.job, [child.job for child in children])
            if parent_id is not None and job.parent_id is None:
                job = msgspec.structs.replace(job, parent_id=parent_id)
            ordered.append(job)
            continue
        stack.append((node, parent_id, depth, True))
        stack += [(child, node.job.id, depth + 1, False) for child in reversed(children)]
    return ordered


def _node(child: object) -> Flow:
    if isinstance(child, Flow):
        return child
    if isinstance(child, Job):
        return Flow(child)
    raise InvalidArgumentError(
        f"children must be Flow or Job, got {shown(child)}", field="children", value=child
    )


def _after(job: Job, before: Sequence[Job]) -> Job:
    if not before:
        return job
    return msgspec.structs.replace(job, after=(*job.after, *(each.id for each in before)))


def _jobs(jobs: Iterable[Job]) -> list[Job]:
    found = list(_each(jobs))
    for job in found:
        if not isinstance(job, Job):
            raise InvalidArgumentError(f"expected a Job, got {shown(job)}", field="job", value=job)
    return found


def _each(jobs: Iterable[Job]) -> Iterator[Job]:
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise InvalidArgumentError(f"expected jobs, got {shown(jobs)}", field="jobs", value=jobs)
    yield from jobs
