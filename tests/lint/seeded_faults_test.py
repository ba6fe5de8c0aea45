"""Seeded faults can be planted, and the case that sees one is the one that fails, not one that has something to say."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import seeded_faults

RULE = "=" * 79

TALKS = f"""{RULE}
tests/parity/model_parity_test.cpp:48:
TEST CASE:  a case that passes

tests/parity/model_parity_test.cpp:86: MESSAGE: worst gradient error in fp64: 3e-13

"""


def fails(kind):
    return f"""{RULE}
tests/unit/data/planted_duplicates_test.cpp:90:
TEST CASE:  a case that fails

tests/unit/data/planted_duplicates_test.cpp:99: {kind} is NOT correct!
  values: CHECK( 1 == 2 )

"""


class FailingCase(unittest.TestCase):
    def test_the_case_of_the_error_is_named(self):
        for kind in ("ERROR: CHECK( a == b )", "FATAL ERROR: REQUIRE( a == b )"):
            output = TALKS + fails(kind) + TALKS
            self.assertEqual(seeded_faults.failing_case(output), "a case that fails")

    def test_messages_alone_are_no_failure(self):
        self.assertIsNone(seeded_faults.failing_case(TALKS))
        self.assertIsNone(seeded_faults.failing_case(""))


class NumberOfCases(unittest.TestCase):
    def test_a_filter_that_names_no_case_is_told_from_cases_that_pass(self):
        none = "[doctest] test cases:  0 |  0 passed | 0 failed | 84 skipped\n"
        self.assertEqual(seeded_faults.number_of_cases(none), 0)
        self.assertEqual(seeded_faults.number_of_cases(TALKS + none.replace("0", "12", 1)), 12)
        self.assertIsNone(seeded_faults.number_of_cases(TALKS))


class Page(unittest.TestCase):
    FAULT = {"name": "a fault", "file": "a.cpp", "old": "1", "new": "2", "tests": ["unit_base"]}
    RESULT = {"commit": "0123456789", "tests": {"unit_base": "a case"}}

    def test_a_row_of_another_form_of_the_fault_is_marked(self):
        row = seeded_faults.row_of(self.FAULT, self.RESULT)
        self.assertEqual(seeded_faults.marked(row, self.FAULT), row)
        for change in ({"new": "3"}, {"cases": "a case*"}):
            later = seeded_faults.marked(row, self.FAULT | change)
            self.assertEqual(later, row.replace("0123456789", "0123456789*"))
            self.assertEqual(seeded_faults.marked(later, self.FAULT | change), later)
            self.assertEqual(seeded_faults.marked(later, self.FAULT), row)


class Faults(unittest.TestCase):
    def test_every_fault_can_be_planted(self):
        """Code moves on; a fault whose line is gone is tried by nobody."""
        for fault in seeded_faults.load_faults():
            with self.subTest(fault["name"]):
                text = (seeded_faults.ROOT / fault["file"]).read_text(encoding="utf-8")
                self.assertEqual(text.count(fault["old"]), 1)
                self.assertNotEqual(fault["old"], fault["new"])


if __name__ == "__main__":
    unittest.main()
