"""Tests a Scorer in mapInArrow on a Spark cluster of two workers, which may be killed.

pytest tests/campaigns/engines/spark.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lnrnn
import sequence_files

pytest.importorskip("safetensors")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pyspark = pytest.importorskip("pyspark")
sql = pytest.importorskip("pyspark.sql")

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark warns about pandas, and leaves sockets open

HOME = Path(pyspark.__file__).parent
SCHEMA = "id long, x array<array<float>>, x_last array<float>"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns paths of a model and of an input of 16 row groups, and the results by id."""
    model, source, got = sequence_files.with_model(tmp_path_factory.mktemp("spark"), 64, 400)
    return model, source, dict(zip(got["id"].to_pylist(), got["x_last"].to_pylist(), strict=True))


class Cluster:
    """A master and two workers with one core each."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"spark://127.0.0.1:{free.getsockname()[1]}"
        own = [str(sequence_files.ROOT), str(HOME.parent), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(own), "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1",
        }  # fmt: skip
        self.folder, self.processes = folder, []
        port = self.address.rpartition(":")[2]
        self._start("Master", "master.Master", "--port", port)
        for k in range(2):
            words = self.address, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{k}")
            self._start(f"worker{k}", "worker.Worker", *words)

    def _start(self, name, program, *words):
        spark = str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{program}"
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [*spark, *words, "--host", "127.0.0.1", "--webui-port", "0"],
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            )

    def workers(self, text):
        """Returns the processes of the workers' executors with this text in their command."""
        found = {}
        for process in self.processes[1:]:
            found |= sequence_files.descendants(process.pid)
        return [pid for pid, words in found.items() if text in words]

    def session(self):
        os.environ.update({key: self.environment[key] for key in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP")})
        builder = sql.SparkSession.builder.master(self.address).config("spark.ui.enabled", "false")
        options = {
            "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
            "spark.sql.files.maxPartitionBytes": "65536",
            "spark.executorEnv.PYTHONPATH": self.environment["PYTHONPATH"],
            "spark.sql.execution.arrow.maxRecordsPerBatch": "37",
        }  # fmt: skip
        for name, value in options.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        # Wait until both executors are there: otherwise one of them may compute all.
        deadline = time.monotonic() + 120
        while len(self.workers("CoarseGrainedExecutorBackend")) < 2:
            assert time.monotonic() < deadline, "no executors"
            time.sleep(0.2)
        return session

    def end(self):
        for process in self.processes[::-1]:
            for pid in sequence_files.descendants(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    session = cluster.session()
    yield cluster, session
    session.stop()
    cluster.end()


def results(frame):
    return {row["id"]: row["x_last"] for row in frame.collect()}


@pytest.mark.parametrize("partitions", [None, 1, 7])
def test_results_have_equal_bits_for_any_partitions(files, spark, partitions):
    model, source, want = files
    frame = spark[1].read.parquet(str(source))
    frame = frame if partitions is None else frame.repartition(partitions)
    scorer = lnrnn.Scorer(model, "x")
    assert results(frame.mapInArrow(scorer, SCHEMA)) == want


def test_the_program_of_the_page_runs(files, spark):
    """The page is docs/scoring.md."""
    names = {"spark": spark[1], "scorer": lnrnn.Scorer(files[0], "x")}
    exec(sequence_files.of_the_docs("Spark").replace('"in.parquet"', repr(str(files[1]))), names)
    assert results(names["scored"]) == files[2]


def test_both_workers_compute(files, spark):
    def where(tables):
        time.sleep(1)
        for table in tables:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()] * len(table)})

    frame = spark[1].read.parquet(str(files[1])).repartition(8).mapInArrow(where, "pid long")
    assert len({row["pid"] for row in frame.collect()}) == 2


def test_a_killed_worker_is_replaced(files, spark, tmp_path):
    """First a Python process is killed while it computes, and then an executor between two jobs."""
    model, source, want = files
    cluster, session = spark
    scorer, mark = lnrnn.Scorer(model, "x"), str(tmp_path / "killed")

    def scored(tables):
        for table in tables:
            if 40 in table.column(0).to_pylist() and not os.path.exists(mark):
                open(mark, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield from scorer(iter([table]))

    frame = session.read.parquet(str(source)).repartition(8)
    assert results(frame.mapInArrow(scored, SCHEMA)) == want and os.path.exists(mark)
    os.kill(cluster.workers("CoarseGrainedExecutorBackend")[0], signal.SIGKILL)
    assert results(frame.mapInArrow(scorer, SCHEMA)) == want
