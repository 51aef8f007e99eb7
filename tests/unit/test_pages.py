"""Tables and findings as pages of HTML."""

import re
from html.parser import HTMLParser

import pytest

from unembedding.pages import html_table, html_text, write_page


class Table(HTMLParser):
    """The cells of a table, and what hovering over them shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.head: list[str] = []
        self.rows: list[list[str]] = []
        self.whole: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        if tag == "tr" and self.head:
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
            self.whole.append(dict(attrs)["title"])

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "th":
            self.head.append(data)
        if self.inside == "td":
            self.rows[-1][-1] = data


@pytest.fixture
def table(tmp_path):
    def make(text):
        (tmp_path / "t.csv").write_text(text)
        return html_table(tmp_path / "t.csv")

    return make


def test_numbers_are_rounded_and_hovering_shows_them_whole(table):
    shown = Table(table("name,step,some_value\na,10000000,0.123456789\nb,2,3e-07\n"))
    assert shown.head == ["name", "step", "some value"]
    assert shown.rows == [["a", "10000000", "0.1235"], ["b", "2", "3e-07"]]
    assert "0.123456789" in shown.whole


def test_what_every_row_says_is_said_once_and_what_none_says_not_at_all(table):
    page = table("name,width,note\na,64,\nb,64,\n")
    assert Table(page).head == ["name"]
    assert "In every row: width: 64." in page


def test_a_table_of_one_row_keeps_its_columns(table):
    assert Table(table("name,width\na,64\n")).rows == [["a", "64"]]


def test_a_table_without_rows_is_a_page_still(table):
    assert "<table>" in table("name,width\n")


def test_text_of_others_is_no_html(table, tmp_path):
    assert "<b>" not in table('name,x\n<b>,"y"" onclick=""z"\nc,d\n')
    write_page(tmp_path / "p.html", "<i>", ["a < b @body"], html_text("<u>"))
    page = (tmp_path / "p.html").read_text()
    assert not re.search("<[iu]>", page)
    assert "<section>\n<p>a &lt; b @body</p>\n</section>" in page


def test_a_page_needs_no_other_file(tmp_path):
    write_page(tmp_path / "p.html", "Title", [], "")
    assert not re.search(r"(src|href)=|@import|url\(", (tmp_path / "p.html").read_text())
