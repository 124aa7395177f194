"""Which files are the lake, and how a batch becomes part of it all at once.

    _penstock/lake.json            what this folder is: its id and the version of its layout
    _penstock/manifests/N.json     all files of all tables after batch N, and how far each store was read
    _penstock/staging/N/…          the files of batch N before it counts
    _penstock/reading/N/…          links to files of manifest N that somebody reads, kept for a day
    _penstock/lock                 held while somebody changes the lake
    events/ attempts/ …            the files themselves

A batch writes its files into staging, flushes them, and then writes manifest N, whole or not at all: that is the
commit. Afterwards the files are moved to their places and those that N no longer lists are deleted. Whoever dies
before the commit leaves staging, which is thrown away; whoever dies after it leaves moves undone, which are done by the
next one. So after each finished sync the folders hold exactly the files of the newest manifest, and any reader of
Parquet may read them as they are.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark.tables import EVENTS, LAKE_TABLES

__all__ = ["VERSION", "LakeFile", "LakeFolder", "Manifest", "Staged"]

#: The version of the layout and of the tables. Raise it when a table changes; older lakes are rebuilt from `events`.
VERSION: Final = 1
_KEPT_MANIFESTS: Final = 10
#: Seconds for which a file that was read stays readable after it was replaced.
_HELD_FOR: Final = 86_400
_MAGIC: Final = b"PAR1"


class LakeFile(msgspec.Struct, frozen=True, order=True):
    """A file of a table: its path in the lake, how many rows it has, which part of the table they are, and its bytes.

    Lakes of before did not note the bytes: there they are 0.
    """

    path: str
    rows: int
    part: str = ""
    size: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The lake after a batch.

    Attributes:
        offsets: by source, the number of the last journal row that was read.
        hidden: by source, how many numbers up to there had no row, because it was archived before the lake came.
    """

    number: int = 0
    version: int = VERSION
    offsets: dict[str, int] = {}
    hidden: dict[str, int] = {}
    tables: dict[str, list[LakeFile]] = {}

    def files(self, table: str) -> list[LakeFile]:
        return self.tables.get(table, [])

    def rows(self, table: str) -> int:
        return sum(each.rows for each in self.files(table))


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    format: str = "penstock-lake"
    version: int = VERSION
    id: str = ""


class Staged(msgspec.Struct, frozen=True):
    """A file that was written into staging, and its place in the lake."""

    staged: Path
    file: LakeFile


class LakeFolder:
    """A lake's folder on a disk that driver and executors share."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._own = self.path / "_penstock"

    def __repr__(self) -> str:
        return f"<LakeFolder {self.path}>"

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self._own / "lake.json").is_file()

    def check(self) -> None:
        """Make sure that this is a lake that this code understands.

        Raises:
            InvalidArgumentError: it is not a lake.
            BackendError: it was written by a newer version.
        """
        if not self.exists:
            raise InvalidArgumentError(
                f"there is no lake in {self.path}; penstock pipeline run --lake makes one", field="lake"
            )
        self._identity()

    @property
    def id(self) -> str:
        return self._identity().id

    def _identity(self) -> _Identity:
        try:
            found = msgspec.json.decode((self._own / "lake.json").read_bytes(), type=_Identity)
        except (OSError, msgspec.MsgspecError) as error:
            raise BackendError(f"{self._own / 'lake.json'} cannot be read: {error}") from error
        _check_version(found.version, self.path)
        return found

    def create(self) -> None:
        """Make the folder a lake, unless it is one.

        Raises:
            InvalidArgumentError: something else is there.
        """
        if self.exists:
            self._identity()
            return
        if self.path.exists() and (not self.path.is_dir() or self._has_foreign_files()):
            raise InvalidArgumentError(
                f"{self.path} is not empty and not a lake; name an empty folder, or one that does not exist",
                field="lake",
                value=str(self.path),
            )
        self._own.mkdir(parents=True, exist_ok=True)
        _write_whole(self._own / "lake.json", msgspec.json.encode(_Identity(id=uuid.uuid4().hex)))

    def _has_foreign_files(self) -> bool:
        # What a first sync may have left that was killed before it had made the folder a lake.
        return any(each.name != "_penstock" for each in self.path.iterdir())

    # -- who changes it -----------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who changes the lake.

        Raises:
            BackendError: another pipeline is at work on it.
        """
        self._own.mkdir(parents=True, exist_ok=True)
        with (self._own / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise BackendError(
                    f"another pipeline is at work on {self.path} ({holder}); let it end, then run this one again",
                    retryable=True,
                ) from None
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    # -- what it holds ------------------------------------------------------------------------------------------

    def current(self) -> Manifest:
        """Return the newest manifest; an empty lake has number 0.

        Raises:
            BackendError: it was written by a newer version, or cannot be read.
        """
        numbers = self._numbers()
        if not numbers:
            return Manifest()
        path = self._manifest(numbers[-1])
        try:
            raw = path.read_bytes()
            _check_version(msgspec.json.decode(raw, type=_Identity).version, self.path)
            return msgspec.json.decode(raw, type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise BackendError(f"{path} cannot be read: {error}") from error

    def location(self, manifest: Manifest, file: LakeFile) -> Path:
        """Return where a file of a manifest lies now: its move may still be due."""
        place = self.path / file.path
        if not place.exists():
            staged = self._staging(manifest.number) / _staged_name(file.path)
            if staged.exists():
                return staged
        self._check_whole(file)
        return place

    def _check_whole(self, file: LakeFile) -> None:
        """Make sure that a file is there as it was committed.

        Raises:
            BackendError: it is gone, or cut off.
        """
        place = self.path / file.path
        try:
            found = place.stat().st_size
        except FileNotFoundError:
            what = "is missing from the lake"
        else:
            # Whoever writes a file again, whole, may do so; one that is cut off does not end as Parquet does.
            if not file.size or found == file.size or _ends_as_parquet(place):
                return
            what = f"is damaged: it has {found} bytes, and was written with {file.size}"
        table = file.path.partition("/")[0]
        raise BackendError(
            f"{place} {what}; restore it from a backup, or "
            + (
                "sync into a new folder"
                if table == EVENTS.name
                else f"let `penstock pipeline run --rebuild` make {table} again from events"
            )
        )

    def hold(self, manifest: Manifest, files: Iterable[LakeFile]) -> list[Path]:
        """Return where files of a manifest can be read, for a day also after other batches have replaced them.

        They are links, so they take no room, and the folders of the tables hold what counts and nothing else. Whoever
        may not write into the lake reads the files themselves.

        Raises:
            BackendError: a file is gone or damaged.
        """
        folder = self._own / "reading" / f"{manifest.number:09d}"
        places = [(self.location(manifest, file), folder / _staged_name(file.path)) for file in files]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)  # its day begins again
            for place, link in places:
                _link(link, place)
        except FileNotFoundError as error:
            raise BackendError(
                f"a batch has replaced {error.filename}; read again", retryable=True
            ) from error
        except OSError:  # a lake that is not ours to write, or a disk without links
            return [place for place, _ in places]
        return [link for _, link in places]

    # -- changing it --------------------------------------------------------------------------------------------

    def new_staging(self, number: int, table: str) -> Path:
        """Return a folder that does not exist yet, for Spark to write files of a table into."""
        folder = self._staging(number) / "written" / f"{table.replace('/', '_')}-{uuid.uuid4().hex[:8]}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    def repair(self, *, rebuilds: bool = False) -> list[str]:
        """Finish what a committed batch left undone, throw away what was never committed; return what was done.

        Args:
            rebuilds: every table but `events` will be made again, so that its files need not be whole.

        Raises:
            BackendError: a file that the lake needs is gone or damaged.
        """
        manifest = self.current()
        done: list[str] = []
        files = {file.path: file for files in manifest.tables.values() for file in files}
        wanted = set(files)
        events = {file.path for file in manifest.files(EVENTS.name)}
        for path, file in sorted(files.items()):
            staged = self._staging(manifest.number) / _staged_name(path)
            if not (self.path / path).exists() and staged.exists():
                _move(staged, self.path / path)
                done.append(f"moved {path}")
            if not rebuilds or path in events:
                self._check_whole(file)
        for stray in self._strays(wanted):
            stray.unlink()
            done.append(f"deleted {stray.relative_to(self.path)}")
        staging = self._own / "staging"
        if staging.exists():
            shutil.rmtree(staging)
            done.append("deleted staging")
        for folder in (self._own / "reading").glob("*"):
            if folder.stat().st_mtime < time.time() - _HELD_FOR:
                shutil.rmtree(folder)
        for number in self._numbers()[:-_KEPT_MANIFESTS]:
            self._manifest(number).unlink(missing_ok=True)
        for temporary in self._own.glob("**/*.tmp"):
            temporary.unlink(missing_ok=True)
        return done

    def commit(self, manifest: Manifest, added: Iterable[Staged]) -> None:
        """Make a batch part of the lake.

        Raises:
            BackendError: somebody else has committed this number.
        """
        staging = self._staging(manifest.number)
        folders = set()
        for each in added:
            target = staging / _staged_name(each.file.path)
            _flush(each.staged)
            each.staged.rename(target)
            folders.add(target.parent)
        for folder in folders:
            _flush(folder)
        self._manifest(1).parent.mkdir(exist_ok=True)
        _write_whole(self._manifest(manifest.number), msgspec.json.encode(manifest), exclusive=True)
        self.repair()

    def _strays(self, wanted: set[str]) -> Iterator[Path]:
        for table in LAKE_TABLES:
            folder = self.path / table
            if folder.is_dir():
                for path in folder.rglob("*"):
                    if path.is_file() and str(path.relative_to(self.path)) not in wanted:
                        yield path
                for path in sorted(folder.rglob("*"), reverse=True):
                    if path.is_dir():
                        with suppress(OSError):  # not empty
                            path.rmdir()

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in (self._own / "manifests").glob("*.json"))

    def _manifest(self, number: int) -> Path:
        return self._own / "manifests" / f"{number:09d}.json"

    def _staging(self, number: int) -> Path:
        return self._own / "staging" / f"{number:09d}"


def _staged_name(path: str) -> str:
    return path.replace("/", "~")


def _ends_as_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_MAGIC)))
        return file.read() == _MAGIC


def _check_version(version: int, path: Path) -> None:
    if version > VERSION:
        raise BackendError(
            f"the lake in {path} has version {version}, this code knows up to {VERSION}; upgrade penstock"
        )


def _link(link: Path, place: Path) -> None:
    try:
        link.hardlink_to(place)
    except FileExistsError:
        if not link.samefile(place):  # the file was restored, from a backup
            link.unlink()
            link.hardlink_to(place)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
    _flush(target.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_whole(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Write a file so that it is there whole, or not at all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        if exclusive:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    except FileExistsError:
        raise BackendError(
            f"another pipeline has written {path}; run this one again", retryable=True
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)
