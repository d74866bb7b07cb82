"""The stub says what the module has, no more and no less."""

import ast
import inspect
import pathlib

import insane
from insane import _native


def members(node: ast.ClassDef) -> set[str]:
    names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    names |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return names


def test_the_stub_matches_the_module() -> None:
    stub = ast.parse((pathlib.Path(insane.__file__).parent / "_native.pyi").read_text())
    classes = {n.name: n for n in stub.body if isinstance(n, ast.ClassDef)}
    compiled = {n: c for n, c in vars(_native).items() if inspect.isclass(c)}
    assert set(classes) == set(compiled)
    hidden = {"__buffer__", "__new__"}
    for name, node in classes.items():
        special = {"__len__", "__bytes__", "__enter__", "__exit__"}
        public = {m for m in vars(compiled[name]) if not m.startswith("__") or m in special}
        assert members(node) - hidden == public - hidden, name


def test_signatures_agree() -> None:
    stub = ast.parse((pathlib.Path(insane.__file__).parent / "_native.pyi").read_text())
    for node in (n for n in stub.body if isinstance(n, ast.ClassDef)):
        for method in (m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("__")):
            if any(isinstance(d, ast.Name) and d.id == "property" for d in method.decorator_list):
                continue
            compiled = inspect.signature(getattr(getattr(_native, node.name), method.name))
            stubbed = [a.arg for a in method.args.args + method.args.kwonlyargs]
            assert list(compiled.parameters) == stubbed, f"{node.name}.{method.name}"
