"""The documents: checks their links and their claims, and renders the guide to HTML.

`check` fails on a relative link to nothing (a file, or a heading in it), on a `make` verb that the Makefile does not
have, on a claim `(test: name)` for which no test of that name exists: the documents may only promise what a test
shows, and on a block of code that does not say which test runs it (`<!-- test: name -->` before it) or why none does
(`<!-- not run: why -->`). `build` renders docs/ to out/doc/guide.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

from testkit.paths import OUT, ROOT

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(?<!\\)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.M)
_CLAIM = re.compile(r"[(;] ?tests?: ([^);]+)")
_VERB = re.compile(r"`make ([a-z][a-z-]*)[^`]*`")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<kind>test|not run): (?P<what>[^\n]+?) -->\n)?^(?P<fence>```|~~~)(?P<rest>.*?)^(?P=fence)\s*$",
    re.M | re.S,
)
_FENCED_VERB = re.compile(r"^make ([a-z][a-z-]*)", re.M)
_TEST_NAME = re.compile(r"\b(?:fn|def) (\w+)")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
pre {{ background: #f4f4f2; padding: .8rem; overflow-x: auto; }} code {{ font-size: .92em; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid #ccc; padding: .25rem .6rem; vertical-align: top; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181a; color: #ddd; }} pre {{ background: #222528; }}
a {{ color: #8ab4f8; }} td, th {{ border-color: #444; }} }}
</style></head><body>
{body}
</body></html>
"""


def documents() -> list[Path]:
    """Every Markdown file of the project that git knows or would add."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", "*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        # An unpacked release has no git.
        return sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
    return sorted({ROOT / name for name in done.stdout.splitlines() if (ROOT / name).exists()})


def prose(text: str) -> str:
    """A document without its code, which may hold anything."""
    return _CODE.sub("``", _FENCE.sub("", text))


def anchor(heading: str) -> str:
    """The name under which a heading can be linked, as the usual Markdown hosts make it."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain))


def anchors(text: str) -> set[str]:
    """All anchors of a document; repeated headings are numbered."""
    seen: dict[str, int] = {}
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        name = anchor(heading)
        count = seen.get(name, 0)
        seen[name] = count + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def broken_links(path: Path, text: str) -> list[str]:
    """The relative links of a document that lead nowhere."""
    bad = []
    for target in _LINK.findall(prose(text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, part = target.partition("#")
        goal = (path.parent / name).resolve() if name else path
        if not goal.exists():
            bad.append(f"link to {target}: there is no such file")
        elif part and goal.suffix == ".md" and part not in anchors(goal.read_text()):
            bad.append(f"link to {target}: {goal.name} has no such heading")
    return bad


def unproved(text: str, tests: set[str]) -> list[str]:
    """The claims of a document that name a test which does not exist."""
    named = [name.strip() for claim in _CLAIM.findall(_FENCE.sub("", text)) for name in claim.strip("`").split(",")]
    return [
        f"claims (test: {name}), but there is no such test"
        for name in named
        if name.strip("`").rsplit("::")[-1] not in tests
    ]


def block(text: str, test: str) -> str:
    """The block of code that a test runs, without its fence. Raises ValueError if there is not exactly one."""
    found = [m.group("rest").partition("\n")[2] for m in _BLOCK.finditer(text) if m.group("what") == test]
    if len(found) != 1:
        raise ValueError(f"{len(found)} blocks of {test}, not one")
    return found[0]


def untested_blocks(text: str, tests: set[str]) -> list[str]:
    """The blocks of code that no test runs, and that do not say why."""
    bad = []
    for match in _BLOCK.finditer(text):
        first = match.group("rest").strip().splitlines()[:2]
        if match.group("kind") is None:
            bad.append(f"does not say what runs the block {first}: <!-- test: name -->, or <!-- not run: why -->")
        elif match.group("kind") == "test" and match.group("what") not in tests:
            bad.append(f"says that {match.group('what')} runs the block {first}, but there is no such test")
    return bad


def unknown_verbs(text: str, makefile: str) -> list[str]:
    """The make verbs of a document that the Makefile does not have."""
    known = set(re.findall(r"^([a-z][a-z-]*)\s*:", makefile, re.M))
    fenced = [verb for match in _FENCE.finditer(text) for verb in _FENCED_VERB.findall(match.group())]
    return [
        f"names `make {verb}`, which the Makefile does not have"
        for verb in [*_VERB.findall(text), *fenced]
        if verb not in known
    ]


def test_names() -> set[str]:
    """The names of all functions in Rust and Python sources, and of the test scripts: what a claim may name."""
    names: set[str] = set()
    for pattern in (
        "crates/**/*.rs",
        "apps/**/*.rs",
        "oran/**/*.rs",
        "tests/**/*.rs",
        "python/**/*.py",
        "scripts/**/*.py",
    ):
        for path in ROOT.glob(pattern):
            if "target" not in path.parts:
                names |= set(_TEST_NAME.findall(path.read_text(errors="replace")))
    return names | {path.stem for path in ROOT.glob("tests/system/*")}


def check() -> int:
    """Checks every document; prints what is wrong."""
    makefile, tests = (ROOT / "Makefile").read_text(), test_names()
    bad = 0
    for path in documents():
        text = path.read_text()
        for what in [
            *broken_links(path, text),
            *unproved(text, tests),
            *unknown_verbs(text, makefile),
            *untested_blocks(text, tests),
        ]:
            print(f"{path.relative_to(ROOT)}: {what}")
            bad += 1
    print(f"{len(documents())} documents, {bad} faults")
    return 1 if bad else 0


def build() -> int:
    """Renders docs/ to HTML, links between pages included."""
    try:
        import markdown
    except ImportError:
        print("docs: no Markdown package (scripts/setup python): the guide is not rendered", file=sys.stderr)
        return 1
    target = OUT / "doc/guide"
    pages = sorted((ROOT / "docs").rglob("*.md"))
    for path in pages:
        text = path.read_text()
        renderer = markdown.Markdown(
            extensions=["tables", "fenced_code", "toc"],
            extension_configs={"toc": {"slugify": lambda value, _separator: anchor(value)}},
        )
        body = re.sub(r'(href="[^":]+)\.md(#[^"]*)?"', r'\1.html\2"', renderer.convert(text))
        title = next(iter(_HEADING.findall(text)), path.stem)
        out = target / path.relative_to(ROOT / "docs").with_suffix(".html")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(_PAGE.format(title=html.escape(title), body=body))
    for picture in (ROOT / "docs").rglob("*.svg"):
        out = target / picture.relative_to(ROOT / "docs")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(picture.read_bytes())
    print(f"{len(pages)} pages: {(target / 'README.html').relative_to(ROOT)}")
    return 0


def main() -> int:
    """Does what the one argument says."""
    if sys.argv[1:] == ["check"]:
        return check()
    if sys.argv[1:] == ["build"]:
        return build()
    print(f"{__doc__}\nusage: python3 -m testkit.docs check|build", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
