"""The check of the floors finds every kind of fault, with file and line, and passes what is right."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_layers.py"


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(CHECK), root], capture_output=True, text=True, check=False
        )
    return done.returncode, done.stdout


class CheckLayers(unittest.TestCase):
    def faults(self, name, include, others=()):
        files = {other: "" for other in others}
        files[name] = f"#pragma once\n#include {include}\n"
        code, output = check(files)
        self.assertEqual(code, 1 if f"{name}:2: " in output else 0, output)
        return code

    def test_a_floor_may_include_what_its_row_names(self):
        base = ["lib/base/a.hpp"]
        self.assertEqual(self.faults("lib/ops/x.hpp", '"lib/base/a.hpp"', base), 0)
        self.assertEqual(self.faults("lib/ops/x.hpp", '"lib/comm/a.hpp"', ["lib/comm/a.hpp"]), 0)
        self.assertEqual(self.faults("lib/train/x.hpp", '"lib/data/a.hpp"', ["lib/data/a.hpp"]), 0)
        self.assertEqual(self.faults("apps/x/x.cpp", '"lib/plan/a.hpp"', ["lib/plan/a.hpp"]), 0)

    def test_an_upward_include_is_a_fault(self):
        self.assertEqual(self.faults("lib/base/x.hpp", '"lib/tensor/a.hpp"', ["lib/tensor/a.hpp"]), 1)
        self.assertEqual(self.faults("lib/ops/x.cpp", '"lib/models/a.hpp"', ["lib/models/a.hpp"]), 1)
        self.assertEqual(self.faults("lib/train/x.cpp", '"apps/a.hpp"', ["apps/a.hpp"]), 1)
        self.assertEqual(self.faults("lib/train/x.cpp", '"tests/a.hpp"', ["tests/a.hpp"]), 1)

    def test_a_lower_floor_that_the_row_does_not_name_is_a_fault(self):
        self.assertEqual(self.faults("lib/layers/x.cpp", '"lib/comm/a.hpp"', ["lib/comm/a.hpp"]), 1)
        self.assertEqual(self.faults("lib/tensor/x.cpp", '"lib/recipe/a.hpp"', ["lib/recipe/a.hpp"]), 1)
        self.assertEqual(self.faults("lib/engine/x.cpp", '"lib/data/a.hpp"', ["lib/data/a.hpp"]), 1)

    def test_backends_do_not_know_each_other(self):
        cuda = ["kernels/cuda/a.hpp"]
        self.assertEqual(self.faults("kernels/cpu/x.cpp", '"kernels/a.hpp"', ["kernels/a.hpp"]), 0)
        self.assertEqual(self.faults("kernels/cpu/x.cpp", '"kernels/cuda/a.hpp"', cuda), 1)
        self.assertEqual(self.faults("lib/ops/x.cpp", '"kernels/cuda/a.hpp"', cuda), 1)

    def test_a_missing_file_and_an_unknown_folder_are_faults(self):
        self.assertEqual(self.faults("lib/ops/x.cpp", '"lib/base/gone.hpp"'), 1)
        self.assertEqual(self.faults("lib/utils/x.cpp", '"lib/base/a.hpp"', ["lib/base/a.hpp"]), 1)

    def test_third_party_headers_stay_where_they_belong(self):
        self.assertEqual(self.faults("lib/data/x.cpp", "<nlohmann/json.hpp>"), 0)
        self.assertEqual(self.faults("lib/data/x.hpp", "<nlohmann/json.hpp>"), 1)
        self.assertEqual(self.faults("lib/data/x.cpp", "<yaml-cpp/yaml.h>"), 1)
        self.assertEqual(self.faults("tests/unit/x.cpp", "<nlohmann/json.hpp>"), 0)


if __name__ == "__main__":
    unittest.main()
