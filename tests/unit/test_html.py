"""What objects look like in a notebook."""

import importlib.util
import xml.etree.ElementTree as ET

import pytest

from penstock._html import html_table


def read(text: str) -> dict[str, str]:
    return {row.find("th").text: row.find("td").text for row in ET.fromstring(text).iter("tr")}


def test_numbers_are_readable_and_texts_cannot_be_markup():
    text = html_table("A <b>", {"events": 1234567, "seconds": 0.25, "error": "<script>&", "is_done": True})
    assert read(text) == {"events": "1,234,567", "seconds": "0.2", "error": "<script>&", "is_done": "True"}
    assert ET.fromstring(text).find("caption/b").text == "A <b>"


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs Spark")
def test_a_report_shows_its_fields_in_a_notebook():
    from penstock.spark import FleetReport, FramesReport, SyncReport, WriteReport

    assert read(SyncReport(events=1094, batches=1, seconds=13.06)._repr_html_()) == {
        "events": "1,094",
        "batches": "1",
        "seconds": "13.1",
    }
    for report in (FramesReport, FleetReport, WriteReport):
        made = report(**dict.fromkeys(report.__struct_fields__, 2))
        assert read(made._repr_html_()) == dict.fromkeys(report.__struct_fields__, "2")
        assert report.__name__ in made._repr_html_()
