"""C++ sources. Python takes this folder for the package when it runs at the root of the repository: hand over to the package
that is installed, or to the one in python/."""


def _hand_over() -> None:
    import importlib.machinery
    import importlib.util
    import sys
    from pathlib import Path

    root = Path(__file__).resolve().parent.parent
    others = [path for path in sys.path if Path(path or ".").resolve() != root]
    for places in (others, [str(root / "python")]):
        spec = importlib.machinery.PathFinder.find_spec("mhla", places)
        if spec is not None and spec.loader is not None:
            package = importlib.util.module_from_spec(spec)
            sys.modules["mhla"] = package
            spec.loader.exec_module(package)
            return
    raise ImportError(f"mhla: {root} has the C++ sources only, expected to be run elsewhere, beside an installed package")


_hand_over()
