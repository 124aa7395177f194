"""One job, from `submit` to its result: python examples/hello/hello.py"""

import penstock

app = penstock.App()  # the file penstock.db here, or whatever $PENSTOCK_URL says


@app.job
def greet(name: str) -> str:
    return f"Hello, {name}!"


if __name__ == "__main__":
    handle = greet.submit("world")
    print(f"job {handle.id} is on disk, and {handle.status}")
    penstock.Worker(app).run(until_idle=True)  # usually elsewhere: penstock worker hello:app
    print(f"it is {handle.status}: {handle.result()}")
