"""What was measured on test items. For people: only the evaluation that writes it, the page and
MLflow may import this module.
"""

from __future__ import annotations

from typing import Literal

from stages.common.reports.evaluation import Answer, Summary


class TestRow(Answer):
    """An answer to a test item."""

    __test__ = False  # pytest: no class of tests
    split: Literal["test"]


class TestSummary(Summary):
    """An evaluation of the test split."""

    __test__ = False
    split: Literal["test"]
