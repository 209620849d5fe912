"""A converted ViT through torch.compile (Inductor) in one graph, and as a .pt2 of AOTInductor in a C++ program."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from test_families import timm_vit

import mhla
from mhla import _backend

EXAMPLE = Path(__file__).parents[2] / "examples/aoti_run.cpp"
BACKENDS = ["torch", pytest.param("kernels", marks=pytest.mark.skipif(not _backend.available(), reason="no compiled library (MHLA_LIBRARY)"))]
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The C++ program, which knows torch only."""
    if not hasattr(torch._inductor, "aoti_compile_and_package"):
        pytest.skip("torch has no AOTInductor packages")
    path = tmp_path_factory.mktemp("aoti") / "aoti_run"
    folder = Path(torch.__path__[0])
    subprocess.run(["g++", "-std=c++20", EXAMPLE, "-o", path, f"-I{folder}/include", f"-I{folder}/include/torch/csrc/api/include",
                    f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"],
                   check=True)  # fmt: skip
    return path


def converted(backend):
    return mhla.replace_attention(timm_vit().eval(), blocks=(4, 4), layers=[0, 2], backend=backend)[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_package_runs_in_cpp(program, backend, tmp_path):
    model = converted(backend)
    with torch.no_grad():
        want = model(X)
        package = torch._inductor.aoti_compile_and_package(torch.export.export(model, (X,)), package_path=str(tmp_path / "model.pt2"))
    X.numpy().tofile(tmp_path / "x.bin")
    library = [os.environ["MHLA_LIBRARY"]] if backend == "kernels" else []
    subprocess.run([program, package, tmp_path / "x.bin", tmp_path / "y.bin", "2", "32", "32", *library], check=True)
    got = torch.from_file(str(tmp_path / "y.bin"), size=20).view(2, 10)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inductor_in_one_graph(backend):
    model = converted(backend)
    compiled = torch.compile(model, fullgraph=True)
    want = model(X)
    want.square().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    got = compiled(X)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    got.square().mean().backward()
    for p, gradient in zip(model.parameters(), gradients):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-3, atol=1e-5)
