"""A document store: python examples/document_store/document_store.py

Changes of one document are made one at a time, in order; other documents do not wait for them. The queue keeps the
order, even after a crash; the documents are files.
"""

import json
import tempfile
import threading
from pathlib import Path

import penstock
from penstock import Flow
from penstock.documents import DocumentQueue, QueueDriver


class DocumentStore:
    """Documents as files, changed only by jobs of a document queue."""

    def __init__(self, folder: Path, documents: DocumentQueue) -> None:
        self.folder = folder
        self.documents = documents

    def read(self, document_id: str) -> dict[str, object]:
        path = self.folder / f"{document_id}.json"
        return json.loads(path.read_text()) if path.exists() else {"revision": 0, "lines": []}

    def append(self, document_id: str, line: str) -> None:
        """Enqueue a change; it is on disk when this returns, and applied by `work`."""
        self.documents.enqueue(document_id, "global", "main", {"line": line})

    def work(self) -> None:
        """Apply changes until none is waiting; any number of threads or processes may call this."""
        while (job := self.documents.dequeue_next()) is not None:
            document_id, change = job.key[0], json.loads(job.payload)
            document = self.read(document_id)
            # A job that was done but not reported before a crash runs again: do nothing the second time.
            if job.id != document.get("last_job"):
                document["lines"].append(change["line"])
                document["revision"] += 1
                document["last_job"] = job.id
                written = self.folder / f"{document_id}.new"
                written.write_text(json.dumps(document))
                written.rename(self.folder / f"{document_id}.json")
            self.documents.complete(job.id)


def change(document_id: str, line: str) -> penstock.Job:
    return penstock.Job.new(
        "document", json.dumps({"line": line}).encode(), key=penstock.Key(document_id, "global", "main")
    )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="documents-") as folder:
        url = f"sqlite:///{folder}/jobs.db"
        with penstock.connect(url) as queue:
            documents = DocumentQueue(queue)
            QueueDriver(documents).start()  # reclaims the jobs of a process that died
            store = DocumentStore(Path(folder), documents)
            for number in range(1, 6):
                store.append("minutes", f"point {number}")
                store.append("invoice", f"item {number}")
            # The index is written when both of these are: a flow, across documents.
            documents.add_flow(
                Flow(
                    change("index", "all signed"), [change("minutes", "signed"), change("invoice", "signed")]
                )
            )
            print(f"{documents.total_size()} changes are waiting")
            threads = [threading.Thread(target=store.work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            store.work()  # the index, if it became eligible after all threads had stopped
            for name in ("minutes", "invoice", "index"):
                document = store.read(name)
                print(f"{name}: revision {document['revision']}: {', '.join(document['lines'])}")
            documents.block()
            try:
                store.append("minutes", "too late")
            except penstock.QueueBlockedError as error:
                print(f"closed for today: {error.code}; all done: {documents.is_drained()}")


if __name__ == "__main__":
    main()
