"""The document of a page: its parts are its own, and no text in it ends an element."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from multiworld.observe.document import Document

PACKAGES = ["multiworld.elastic.page", "multiworld.serving.page"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_policy_allows_the_script_and_the_style_of_the_page_and_no_other(package: str) -> None:
    document = Document(package, is_live=True)
    html = document.page("x", None)
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in document.policy
    assert "unsafe" not in document.policy


@pytest.mark.parametrize("package", PACKAGES)
def test_names_end_no_element(package: str) -> None:
    name = "</title></script><script>alert(1)</script>@first@"
    html = Document(package, is_live=True).page(name, {"name": name})
    assert "</script><script>alert(1)" not in html
    assert "<title>&lt;/title&gt;" in html
    assert json.loads(html.partition('id="first">')[2].partition("</script>")[0]) == {"name": name}


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_left_to_fill_in(package: str) -> None:
    assert not re.search(r"@\w+@", Document(package, is_live=True).page("x", None))


def test_a_wheel_carries_the_files_of_each_page() -> None:
    root = Path(__file__).parents[3]
    listed = re.search(r"package-data\]\nmultiworld = (.*)\n", (root / "pyproject.toml").read_text())
    assert listed is not None
    patterns = json.loads(listed[1])
    source = root / "src/multiworld"
    carried = {path for pattern in patterns for path in source.glob(pattern)}
    assert {path for path in source.rglob("assets/*") if path.is_file()} <= carried
