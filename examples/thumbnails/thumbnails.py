"""Thumbnails with progress: python examples/thumbnails/thumbnails.py

Every picture is a job in a process of its own, so two cores make two at a time, and one broken picture fails alone.
"""

import struct
import tempfile
import threading
import zlib
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import penstock

app = penstock.App()


@app.job(timeout=60, memory=1 << 30)
def thumbnail(context: penstock.JobContext, source: str, target: str, width: int) -> str:
    """Shrink a picture (PPM) by averaging squares of pixels, and write it as PNG."""
    columns, rows, pixels = read_ppm(Path(source).read_bytes())
    step = columns // width
    height = rows // step
    lines = []
    for y in range(height):
        lines.append(b"\0" + bytes(averages(pixels, columns, y * step, step, width)))
        context.progress(100 * (y + 1) / height, f"row {y + 1} of {height}")
    Path(target).write_bytes(png(width, height, b"".join(lines)))
    return f"{columns}x{rows} to {width}x{height}"


def averages(pixels: bytes, columns: int, top: int, step: int, width: int) -> list[int]:
    line = []
    for left in range(0, width * step, step):
        for channel in range(3):
            values = [
                pixels[3 * ((top + dy) * columns + left + dx) + channel]
                for dy in range(step)
                for dx in range(step)
            ]
            line.append(sum(values) // len(values))
    return line


def read_ppm(data: bytes) -> tuple[int, int, bytes]:
    kind, columns, rows, _, pixels = data.split(maxsplit=4)
    if kind != b"P6":
        raise penstock.PermanentError("this is not a PPM picture", code="not_a_picture")
    return int(columns), int(rows), pixels


def png(width: int, height: int, lines: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def draw(path: Path, tint: int, size: int = 320) -> None:
    """Paint something to shrink."""
    pixels = (bytes((x * 255 // size, y * 255 // size, tint)) for y in range(size) for x in range(size))
    path.write_bytes(b"P6 %d %d 255\n" % (size, size) + b"".join(pixels))


def follow(console: Console, handles: dict[str, penstock.JobHandle[str]], worker: threading.Thread) -> None:
    """Show how far each job is, as the store knows it."""
    with Progress(console=console) as progress:
        bars = {name: progress.add_task(name, total=100) for name in handles}
        while worker.is_alive():
            worker.join(0.1)
            for name, handle in handles.items():
                progress.update(bars[name], completed=handle.progress)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="thumbnails-") as temporary:
        folder = Path(temporary)
        app.url = f"sqlite:///{folder}/jobs.db"
        handles = {}
        for number in range(4):
            source = folder / f"picture-{number}.ppm"
            draw(source, tint=80 * number)
            handles[source.name] = thumbnail.submit(str(source), str(source.with_suffix(".png")), width=80)
        broken = folder / "broken.ppm"
        broken.write_bytes(b"GIF89a and so on, but not a picture")
        handles[broken.name] = thumbnail.submit(str(broken), str(folder / "broken.png"), width=80)

        worker = threading.Thread(target=penstock.Worker(app, concurrency=2).run, kwargs={"until_idle": True})
        worker.start()
        follow(Console(), handles, worker)
        for picture, handle in handles.items():
            job = handle.job()
            print(
                f"{picture}: {job.status}, {(job.result or job.error_message.encode()).decode().splitlines()[0]}"
            )
        made = sorted(folder.glob("*.png"))
        print(f"{len(made)} thumbnails, {sum(path.stat().st_size for path in made)} bytes together")
        app.close()


if __name__ == "__main__":
    main()
