"""Nodes share no file system: the results go to a storage, a folder or a real S3 server."""

import shutil
import subprocess
import sys

import boto3
import pytest
import yaml
from moto.server import ThreadedMotoServer
from running import REPOSITORY, environment

KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
GEOMETRY = {"models": {"only": {"path": "models/only"}}}


@pytest.fixture(scope="session")
def s3():
    """An S3-compatible server on loopback, with a bucket called lab."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **KEYS)
    client.create_bucket(Bucket="lab")
    yield url, client
    server.stop()


def run(folder, config, *storage):
    """Run the workflow as a node that shares no folder with another."""
    (folder / "given.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
    command += ["--configfile", "given.yaml", "--cores", "2", "--nocolor"]
    command += ["--shared-fs-usage", "none", *storage]
    access = {"SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "key", "SNAKEMAKE_STORAGE_S3_SECRET_KEY": "secret"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, **access),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(shutil.which("rsync") is None, reason="the fs storage copies with rsync")
def test_the_default_configuration_runs_to_its_end_in_a_folder_as_storage(tmp_path):
    work, store = tmp_path / "work", tmp_path / "store"
    work.mkdir()
    (work / "resources").symlink_to(REPOSITORY / "resources")
    config = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    storage = ("--default-storage-provider", "fs", "--default-storage-prefix", str(store))
    run(work, config, *storage)
    assert len((store / "results/geometry/summary.csv").read_text().splitlines()) == 6
    assert (store / "results/backends/choice.json").is_file()
    assert (store / "results/mamba/scan.csv").is_file()
    assert not (work / "results/geometry/tiny-olmo").exists()


def test_the_geometry_runs_to_its_end_in_s3_and_has_nothing_to_do_again(tmp_path, s3):
    url, client = s3
    shutil.copytree(REPOSITORY / "resources/tiny-olmo/step0-tokens0M", tmp_path / "models/only")
    storage = ("--default-storage-provider", "s3", "--default-storage-prefix", "s3://lab")
    storage += ("--storage-s3-endpoint-url", url)
    run(tmp_path, GEOMETRY, *storage)
    stored = {entry["Key"] for entry in client.list_objects_v2(Bucket="lab")["Contents"]}
    assert {"results/geometry/summary.csv", "results/geometry/only/local/geometry.json"} <= stored
    assert "Nothing to be done" in run(tmp_path, GEOMETRY, *storage)
