"""What Spark needs of a store, whatever kind it is.

Rows are read with Arrow drivers (ADBC) from the store's tables, not through the `Backend` contract: making a Python object
of every row takes three times as long. This code depends on the tables' columns, which only migrations change.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from penstock.backends import Backend
from penstock.backends.drivers import Driver, driver_for, open_backend
from penstock.errors import BackendError, redacted

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.stores.staging import Staging

__all__ = ["PRIVATE", "FileIdentity", "SparkStore"]

#: The mode of files that only their owner may read.
PRIVATE: Final = 0o600

#: Device and inode of a file; None for a store that is not a file.
FileIdentity = tuple[int, int] | None


@dataclass(frozen=True, repr=False)
class SparkStore(ABC):
    """A store that Spark reads from or writes to; made by `store_at`. Pickles with its password; prints without it.

    Attributes:
        url: names the store on every machine that can reach it; the path of a file is absolute, since executors work in
            folders of their own.
        stages_in_files: whether rows to be written are staged in a folder, which `stagingDir` names.
    """

    url: str
    stages_in_files: ClassVar[bool]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location}>"

    @property
    def driver(self) -> Driver:
        """The driver of the store."""
        return driver_for(self.url)

    @property
    def location(self) -> str:
        """Where the store is, without its password."""
        return self.driver.location(self.url)

    # -- opening ------------------------------------------------------------------------------------------------

    def open_backend(self) -> Backend:
        """Open the store; it is made if it does not exist."""
        return open_backend(self.url)

    def open_existing(self) -> Backend:
        """Open the store.

        Raises:
            BackendError: it does not exist.
        """
        self.check_exists()
        return self.open_backend()

    @abstractmethod
    def check_exists(self) -> None:
        """Check that the store exists.

        Raises:
            BackendError: it does not.
        """

    @abstractmethod
    def check_visible(self) -> None:
        """Check, in a task, that its machine can see the store, unless opening it says so anyway.

        Raises:
            BackendError: it cannot.
        """

    @abstractmethod
    def file_identity(self) -> FileIdentity:
        """Return which file the store is now.

        Raises:
            BackendError: it does not exist.
        """

    @abstractmethod
    def file_mode(self) -> int:
        """Return the mode for files that hold rows of this store."""

    @abstractmethod
    def new_staging(self, store_id: str, folder: str | None) -> Staging:
        """Return the staging of a new write.

        Args:
            store_id: of the store.
            folder: the option `stagingDir`.

        Raises:
            BackendError: the folder cannot be written to.
        """

    # -- reading ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """Open a read-only connection of the Arrow driver; its errors are raised as BackendError.

        Raises:
            BackendError: the store cannot be opened or read.
        """
        from adbc_driver_manager import Error  # noqa: PLC0415 - only tasks that read need it

        try:
            with self._connect() as connection:
                yield connection
        except (Error, OSError) as error:  # OSError: an Arrow stream that breaks off
            raise BackendError(
                f"{self.location} could not be read: {self.redacted(error)}", retryable=True
            ) from None

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new connection in autocommit mode, so that no transaction stays open between statements."""

    @abstractmethod
    def batches(
        self, connection: Any, query: str, *, rows: int, typed_row: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """Run a query and yield its batches.

        Args:
            connection: of `reading`.
            query: with its values in it.
            rows: per batch, if the driver counts rows.
            typed_row: a SELECT of one row that has every column's type, for a store whose columns have none.
        """

    # -- SQL ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def table(self, name: str) -> str:
        """Return a table's name as SQL."""

    @abstractmethod
    def now(self) -> str:
        """Return the store's time in microseconds, as SQL."""

    @abstractmethod
    def quoted(self, text: str) -> str:
        """Return a text as an SQL literal."""

    def redacted(self, error: BaseException) -> str:
        """Return the message of a database library in one line, without the url and its password."""
        text = " ".join(str(error).split())
        password = urlsplit(self.url).password or ""
        for secret in (self.url, self.url.partition("?")[0], password, unquote(password)):
            if secret:
                text = text.replace(secret, "…")
        return redacted(text)
