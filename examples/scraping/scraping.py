"""Scraping with order per host: python examples/scraping/scraping.py

The key of a job is its host: a host's pages are fetched one at a time, in order, while other hosts go on. A page that is
found becomes a job of its own. The two "hosts" are two small servers on this machine.
"""

import re
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin, urlsplit

import penstock

PAGES = {
    "/": "<a href='/a'>a</a> <a href='/b'>b</a> <a href='/c'>c</a> <a href='/missing'>missing</a>",
    "/a": "<a href='/a1'>a1</a> <a href='/'>home</a>",
    "/b": "no links",
    "/c": "<a href='/b'>b</a>",
    "/a1": "the end",
}

app = penstock.App()


def host_of(url: str) -> str:
    return urlsplit(url).netloc


@app.job(key=host_of, timeout=30)
def scrape(context: penstock.JobContext, url: str) -> int:
    """Fetch a page, and spawn a job per link; a link that has a job already adds none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise penstock.PermanentError(f"there is no {url}", code="http_404") from error
        raise penstock.TemporaryError(f"{url} answered {error.code}", code=f"http_{error.code}") from error
    links = [urljoin(url, link) for link in re.findall(r"href='([^']+)'", text)]
    for link in links:
        # A link with the same idempotency key adds no job, so loops of links end.
        context.spawn(scrape.options(idempotency_key=link), url=link)
    return len(links)


class Site(ThreadingHTTPServer):
    """A slow web site that counts concurrent requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visit)
        self.lock = threading.Lock()
        self.busy = self.most_busy = 0
        self.visited: list[str] = []
        self.is_down = True
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Visit(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        with site.lock:
            site.busy += 1
            site.most_busy = max(site.most_busy, site.busy)
            site.visited.append(self.path)
            was_down, site.is_down = site.is_down, False  # the first request gets a 503
        time.sleep(0.05)
        with site.lock:
            site.busy -= 1
        text = PAGES.get(self.path)
        self.send_response(503 if was_down else 404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def open_site():
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


def main() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="scraping-"))
        app.url = f"sqlite:///{folder}/jobs.db"
        sites = [stack.enter_context(open_site()) for _ in range(2)]
        stack.callback(app.close)
        for site in sites:
            scrape.options(idempotency_key=site.url).submit(url=site.url)
        penstock.Worker(app, concurrency=4).run(until_idle=True)
        for number, site in enumerate(sites, start=1):
            print(f"host {number}: {' '.join(site.visited)}")
            print(f"        at most {site.most_busy} request at a time")
        stats = app.queue.get_job_stats()
        print(
            f"{stats.completed_jobs} pages, {stats.stopped_jobs} missing; each home page answered 503 at first"
        )


if __name__ == "__main__":
    main()
