"""What scripts/wheel.py calls a wheel and what it refuses, and the version that cmake/mhla_build.py gives one."""

import os
import subprocess
import sys
import types
import unittest
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "cmake")]
import mhla_build  # noqa: E402
import wheel  # noqa: E402


def torch(release, device):
    return wheel.Torch(f"env{release}/bin/python", release, device, "")


class NameTest(unittest.TestCase):
    def test_a_wheel_names_every_torch_and_its_device(self):
        old, new, cuda = torch("2.2", "cpu"), torch("2.15", "cpu"), torch("2.11", "cu130")
        for found, archs, want in [
            ([new], "", "torch2.15.cpu"),
            ([old, new], "", "torch2.2.torch2.15.cpu"),
            ([cuda], "", "torch2.11.cu130"),
            ([cuda], "90a-real", "torch2.11.cu130.sm90a"),
            ([cuda], "80-real;90-virtual", "torch2.11.cu130.sm80.sm90ptx"),
            ([cuda, new], "", "torch2.11.cu130.torch2.15.cpu"),
            ([new], "90a-real", "torch2.15.cpu"),
        ]:
            self.assertEqual(wheel.local_version(found, archs), want)

    def test_joined_wheels_have_one_version(self):
        with TemporaryDirectory() as folder, mock.patch.object(wheel, "WORK", Path(folder)), mock.patch.object(wheel, "run") as run:
            made = []
            for local in ("torch2.2.cpu", "torch2.15.cpu"):
                made.append(Path(folder) / f"mhla-0.1.0+{local}-py3-none-linux_x86_64.whl")
                with zipfile.ZipFile(made[-1], "w") as archive:
                    archive.writestr(f"mhla-0.1.0+{local}.dist-info/METADATA", f"Name: mhla\nVersion: 0.1.0+{local}\n\nVersion: text\n")
                    archive.writestr(f"mhla/lib/{local}/libmhla_torch.so", "")
            run.side_effect = lambda *_, **__: (Path(folder) / "joined/one.whl").touch()
            wheel.joined(made, "torch2.2.torch2.15.cpu")
            files = Path(folder) / "joined/files"
            self.assertEqual([one.name for one in files.glob("*.dist-info")], ["mhla-0.1.0+torch2.2.torch2.15.cpu.dist-info"])
            (metadata,) = files.glob("*.dist-info/METADATA")
            self.assertEqual(metadata.read_text(), "Name: mhla\nVersion: 0.1.0+torch2.2.torch2.15.cpu\n\nVersion: text\n")
            self.assertEqual(len(list(files.glob("mhla/lib/*/libmhla_torch.so"))), 2)


class RefusalTest(unittest.TestCase):
    def test_before_anything_is_compiled(self):
        cpu, cuda = torch("2.15", "cpu"), torch("2.11", "cu130")
        self.assertEqual(wheel.refusal([cpu], "", ""), "")
        self.assertEqual(wheel.refusal([cuda, cpu], "", "13.2"), "")
        for found, asked, nvcc, said in [
            ([cpu, cpu], "", "", "expected each version once"),
            ([cpu], "on", "13.0", "--cuda on: torch 2.15 of env2.15/bin/python has no CUDA"),
            ([cuda], "on", "", "CUDA kernels for torch 2.11 need nvcc, which was not found"),
            ([cuda], "on", "12.8", "has CUDA 13.0 and nvcc is 12.8: expected the same major version"),
        ]:
            self.assertIn(said, wheel.refusal(found, asked, nvcc))

    def test_the_command_says_it_in_one_line(self):
        with TemporaryDirectory() as folder:
            (Path(folder) / "torch.py").write_text("__version__ = '2.11.0'\nclass version: cuda = None\n")
            done = subprocess.run([sys.executable, "-B", ROOT / "scripts/wheel.py", "--cuda", "on"], capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": folder})  # fmt: skip
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^wheel.py: --cuda on: torch 2.11 of \S+ has no CUDA\n$")


class VersionTest(unittest.TestCase):
    def version(self, cuda, gpu=False, nvcc=True, **environment):
        fake = types.SimpleNamespace(__version__="2.11.0+cu130", version=types.SimpleNamespace(cuda=cuda))
        exists = os.path.exists
        with mock.patch.dict(sys.modules, torch=fake), mock.patch.dict(os.environ, environment), \
             mock.patch.object(mhla_build, "has_nvcc", lambda: nvcc), \
             mock.patch.object(os.path, "exists", lambda path: gpu if path == "/dev/nvidia0" else exists(path)):  # fmt: skip
            return mhla_build.local_version()

    def test_cuda_is_named_where_its_kernels_are_built(self):
        self.assertEqual(self.version("13.0", MHLA_CUDA=""), "torch2.11.cpu")
        self.assertEqual(self.version("13.0", MHLA_CUDA="", gpu=True), "torch2.11.cu130")
        self.assertEqual(self.version("13.0", MHLA_CUDA="", gpu=True, nvcc=False), "torch2.11.cpu")
        self.assertEqual(self.version("13.0", MHLA_CUDA="on"), "torch2.11.cu130")
        self.assertEqual(self.version("13.0", MHLA_CUDA="off", gpu=True), "torch2.11.cpu")
        self.assertEqual(self.version(None, MHLA_CUDA="on", gpu=True), "torch2.11.cpu")

    def test_nvcc_is_found_where_cmake_finds_it(self):
        with TemporaryDirectory() as folder:
            (Path(folder) / "bin").mkdir()
            nvcc = Path(folder) / "bin/nvcc"
            nvcc.touch()
            for environment in ({"CUDA_HOME": folder}, {"CUDACXX": str(nvcc)}):
                with mock.patch.dict(os.environ, {"PATH": "", **environment}):
                    self.assertTrue(mhla_build.has_nvcc())


if __name__ == "__main__":
    unittest.main()
