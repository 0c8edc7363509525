"""The wheel holds all that an installation needs: both packages, settings, entry points; its command line runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the source tree, built with what is installed."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


def files(folder: Path, *suffixes: str) -> set[str]:
    """The files of a folder of the source tree, relative to it."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found if not suffixes or path.suffix in suffixes}


def test_packages_settings_and_entry_points_are_inside(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        (points,) = [name for name in inside if name.endswith(".dist-info/entry_points.txt")]
        (metadata,) = [name for name in inside if name.endswith(".dist-info/METADATA")]
        declared, about = archive.read(points).decode(), message_from_bytes(archive.read(metadata))
    package = files(ROOT / "vlplatform", ".py", ".html", ".css")
    assert {f"vlplatform/{name}" for name in package} <= inside
    assert {f"vlplatform/configs/{name}" for name in files(ROOT / "configs")} <= inside
    assert {f"vlp_segmentation/{name}" for name in files(ROOT / "tasks" / "vlp_segmentation")} <= inside
    assert not [name for name in inside if name.startswith(("tests/", "docs/", "scripts/")) or "__pycache__" in name]
    assert "vlp = vlplatform.cli.main:main" in declared
    assert "segmentation = vlp_segmentation:plugin" in declared
    assert about["Name"] == "vlplatform"
    assert any(need.startswith("torch") for need in about.get_all("Requires-Dist", []))


def test_its_command_line_runs(wheel, tmp_path):
    code = (
        "import sys\n"
        "site = sys.argv[1]\n"
        "sys.path.insert(0, site)\n"
        "import vlplatform, vlp_segmentation\n"
        "from vlplatform.cli import compose\n"
        "from vlplatform.cli.main import main\n"
        "for place in (vlplatform.__file__, vlp_segmentation.__file__, str(compose.configs())):\n"
        "    assert place.startswith(site), place\n"
        "assert main(['--help']) == 0\n"
        "assert main(['train', '--help']) == 0\n"
    )
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [sys.executable, "-c", code, str(unpacked)]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vlp COMMAND" in done.stdout
    assert "segmentation_scenes" in done.stdout
