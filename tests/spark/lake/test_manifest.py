"""How batches become part of a lake: without Spark, so that it can be interrupted at every step."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark.lake import manifest
from penstock.spark.lake.manifest import VERSION, LakeFile, LakeFolder, Manifest, Staged


@pytest.fixture
def folder(tmp_path):
    lake = LakeFolder(tmp_path / "lake")
    lake.create()
    return lake


def staged(folder, number, path, text):
    place = folder.new_staging(number, path.partition("/")[0])
    place.write_text(text)
    return Staged(place, LakeFile(path, 1))


def commit(folder, files):
    """Commit a batch after which the lake has these files, {path: text}; those it has already stay."""
    before = folder.current()
    number = before.number + 1
    kept = {file.path: file for files_ in before.tables.values() for file in files_}
    new = [staged(folder, number, path, text) for path, text in files.items() if path not in kept]
    tables = {}
    for path in files:
        tables.setdefault(path.partition("/")[0], []).append(LakeFile(path, 1))
    folder.commit(Manifest(number=number, offsets={"s": number}, tables=tables), new)


def contents(folder):
    return {
        str(path.relative_to(folder.path)): path.read_text()
        for table in ("events", "jobs", "attempts")
        for path in (folder.path / table).rglob("*")
        if path.is_file()
    }


FIRST = {"events/day=1/a": "a", "jobs/open-1": "1"}
SECOND = {"events/day=1/a": "a", "events/day=2/b": "b", "jobs/open-2": "2"}


def test_a_batch_adds_and_replaces_files(folder):
    commit(folder, FIRST)
    commit(folder, SECOND)
    assert contents(folder) == SECOND
    assert folder.current().offsets == {"s": 2}
    assert not (folder.path / "_penstock" / "staging").exists()


class Interrupted(BaseException):
    """The end of a process, as far as files are concerned."""


@pytest.mark.parametrize("step", range(40))
def test_interrupted_at_any_step_it_is_all_or_nothing(folder, monkeypatch, step):
    """Every change of a file is a step; the batch is cut off before one of them, and the next sync repairs."""
    commit(folder, FIRST)
    left = [step]

    def counted(function):
        def call(*args, **kwargs):
            if left[0] == 0:
                raise Interrupted
            left[0] -= 1
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink", "mkdir", "rmdir", "open", "write_text"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        for name in ("link", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(manifest.shutil, "rmtree", counted(manifest.shutil.rmtree))
        try:
            commit(folder, SECOND)
            whole = True
        except Interrupted:
            whole = False
    again = LakeFolder(folder.path)
    again.repair()
    number = again.current().number
    assert contents(again) == (SECOND if number == 2 else FIRST)
    assert number == 2 or not whole
    assert again.repair() == []
    if number == 1:
        commit(again, SECOND)
        assert contents(again) == SECOND


def test_the_steps_reach_the_end(folder, monkeypatch):
    """The test above would prove nothing if forty steps did not cover a whole batch."""
    steps = []
    for name in ("rename", "replace", "unlink", "mkdir", "rmdir", "open", "write_text"):
        kept = getattr(Path, name)
        monkeypatch.setattr(Path, name, lambda *a, kept=kept, **k: (steps.append(1), kept(*a, **k))[1])
    for name in ("link", "fsync"):
        kept = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, kept=kept, **k: (steps.append(1), kept(*a, **k))[1])
    commit(folder, FIRST)
    steps.clear()
    commit(folder, SECOND)
    assert 20 < len(steps) < 40


def test_uncommitted_files_are_deleted(folder):
    commit(folder, FIRST)
    (folder.path / "events" / "day=1" / "stray.parquet").write_text("torn")
    staged(folder, 2, "events/day=3/c", "c")
    assert len(folder.repair()) == 2
    assert contents(folder) == FIRST


def test_a_file_that_is_gone_is_named(folder):
    commit(folder, FIRST)
    (folder.path / "jobs" / "open-1").unlink()
    with pytest.raises(BackendError, match=r"open-1 is missing.*--rebuild"):
        folder.repair()
    (folder.path / "events" / "day=1" / "a").unlink()
    with pytest.raises(BackendError, match="new folder"):
        folder.repair()


def test_a_lake_of_a_newer_version_is_refused(folder):
    path = folder.path / "_penstock" / "lake.json"
    identity = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(identity | {"version": 99}))
    for use in (folder.check, folder.create):
        with pytest.raises(BackendError, match=rf"version 99.*up to {VERSION}; upgrade"):
            use()


def test_a_manifest_of_a_newer_version_is_refused(folder):
    commit(folder, FIRST)
    path = folder.path / "_penstock" / "manifests" / "000000001.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"version": 99}))
    with pytest.raises(BackendError, match="version 99"):
        folder.current()


def test_a_manifest_that_cannot_be_read_is_named(folder):
    commit(folder, FIRST)
    (folder.path / "_penstock" / "manifests" / "000000001.json").write_text("{")
    with pytest.raises(BackendError, match=r"000000001\.json cannot be read"):
        folder.current()


def test_a_folder_that_is_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgumentError, match="not a lake"):
        LakeFolder(tmp_path).create()
    with pytest.raises(InvalidArgumentError, match="no lake"):
        LakeFolder(tmp_path).check()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


HOLD = """
import sys
from penstock.spark.lake.manifest import LakeFolder
with LakeFolder(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_pipelines_on_one_lake_exclude_each_other(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        said = rf"another pipeline is at work.*pid {other.pid} "
        with pytest.raises(BackendError, match=said) as error, folder.locked():
            pass
        assert error.value.retryable
    finally:
        other.kill()
        other.communicate()
    with folder.locked():  # the lock ends with its process
        pass


def test_a_number_is_committed_once(folder):
    commit(folder, FIRST)
    with pytest.raises(BackendError, match="another pipeline"):
        folder.commit(Manifest(number=1), [])


def test_few_manifests_are_kept(folder):
    for number in range(15):
        commit(folder, {f"jobs/open-{number}": str(number)})
    assert len(list((folder.path / "_penstock" / "manifests").iterdir())) == 10


def held(folder):
    """Return what can be read of the newest manifest, and the files that hold it."""
    manifest = folder.current()
    paths = folder.hold(manifest, [file for files in manifest.tables.values() for file in files])
    return sorted(path.read_text() for path in paths), paths


def test_what_is_read_stays_for_a_day_after_it_was_replaced(folder):
    commit(folder, FIRST)
    texts, paths = held(folder)
    assert texts == ["1", "a"]
    commit(folder, SECOND)
    assert contents(folder) == SECOND
    assert sorted(path.read_text() for path in paths) == texts
    assert held(folder)[0] == ["2", "a", "b"]
    yesterday = time.time() - 86_401
    os.utime(paths[0].parent, (yesterday, yesterday))
    folder.repair()
    assert not any(path.exists() for path in paths)
    assert held(folder)[0] == ["2", "a", "b"]


def test_reading_again_begins_the_day_again(folder):
    commit(folder, FIRST)
    _, paths = held(folder)
    yesterday = time.time() - 86_401
    os.utime(paths[0].parent, (yesterday, yesterday))
    held(folder)
    folder.repair()
    assert all(path.exists() for path in paths)


def test_a_file_that_was_restored_is_read_instead_of_the_one_before(folder):
    commit(folder, FIRST)
    held(folder)
    restored = folder.path / "jobs" / "open-1"
    restored.unlink()
    restored.write_text("restored")
    assert held(folder)[0] == ["a", "restored"]


def test_where_no_links_can_be_made_the_files_themselves_are_read(folder):
    commit(folder, FIRST)
    (folder.path / "_penstock" / "reading").write_text("in the way")
    texts, paths = held(folder)
    assert texts == ["1", "a"]
    assert {path.relative_to(folder.path).parts[0] for path in paths} == {"events", "jobs"}
    commit(folder, SECOND)
