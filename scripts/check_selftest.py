#!/usr/bin/env python3
"""Plants each mistake that the checks look for in a small tree, and asserts that they find this mistake, at its
place, and nothing else."""
import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest

import check_docs
import check_layers
import check_prose
import check_source
import check_tidy
import sass_table
from check_files import Report, Tree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "golden"))
import golden_numbers   # noqa: E402

# A tree without a finding.
CLEAN = {
    "lib/base/CMakeLists.txt": "mtrain_lib(base SOURCES error.cpp EXTERNAL fmt::fmt)\n",
    "lib/base/error.h": "#pragma once\n#include <fmt/core.h>\nint error();\n",
    "lib/base/error.cpp": '#include "base/error.h"\n\nint error() { return 1; }\n',
    "lib/device/CMakeLists.txt": "mtrain_lib(device SOURCES device.cpp  # the choke point\n  DEPS base)\n",
    "lib/device/device.cpp": '#ifdef MTRAIN_HAS_CUDA\n#endif\n#include "base/error.h"\n#include "cpu/backend.h"\n',
    "lib/device/cpu/backend.h": "#pragma once\n",
    "lib/device/cuda/backend.cpp": "#include <cuda_runtime.h>\n",
    "lib/model/CMakeLists.txt": "mtrain_lib(model SOURCES gpt.cpp DEPS base device kernels PRIVATE_EXTERNAL dnnl)\n",
    "lib/model/gpt.cpp": '#include "base/error.h"\n#include "device/cpu/backend.h"\n#include "kernels/norm.h"\n'
                         "// if (cuda) is only said here\nint gpt() {\n  return 1;\n}\n",
    "kernels/CMakeLists.txt": "mtrain_lib(kernels SOURCES a.cpp DEPS base)\n",
    "kernels/norm.h": '#pragma once\n#include "base/error.h"\n',
    "kernels/cuda/norm.cu": '#include <cuda_bf16.h>\n#include "kernels/norm.h"\n',
    "apps/mtrain/CMakeLists.txt": "target_link_libraries(mtrain PRIVATE mtrain_options mtrain_model)\n",
    "apps/mtrain/main.cpp": '#include "commands.h"\n#include "device/cpu/backend.h"\n#include <CLI/CLI.hpp>\n',
    "apps/mtrain/commands.h": "#pragma once\n",
    "README.md": "# A house\n",
    "test/golden/text.json": "kept as it came  \r\n  without a line break",
}


class Checks(unittest.TestCase):
    def findings(self, files, known_device_branches=()):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, **files}.items():
                if text is not None:
                    path = pathlib.Path(folder, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, newline="")
            report, tree = Report(), Tree(folder)
            check_layers.check(tree, report)
            check_source.check(tree, report, known_device_branches)
            check_docs.check(tree, report)
            return report

    def expect(self, files, *errors, notes=(), known_device_branches=()):
        """Exactly these errors and notes: each given as (where it begins, a part of its text)."""
        report = self.findings(files, known_device_branches)
        for found, wanted in ((report.errors, errors), (report.notes, [("note: " + w, t) for w, t in notes])):
            self.assertEqual(len(found), len(wanted), found)
            for where, text in wanted:
                self.assertTrue(any(f.startswith(where + ":") and text in f for f in found), (where, text, found))

    def test_clean_tree(self):
        self.expect({})

    # layers

    def test_include_upwards(self):
        self.expect({"lib/base/error.cpp": '#include "base/error.h"\n#include "device/cpu/backend.h"\n'},
                    ("lib/base/error.cpp:2", "is of device, which is not in the DEPS of mtrain_lib(base ...)"))

    def test_include_of_a_dependency_of_a_dependency(self):
        self.expect({"lib/model/CMakeLists.txt": "mtrain_lib(model SOURCES gpt.cpp DEPS base device)\n"},
                    ("lib/model/gpt.cpp:3", '"kernels/norm.h" is of kernels'))

    def test_commented_dependency_does_not_count(self):
        self.expect({"lib/model/CMakeLists.txt": "mtrain_lib(model SOURCES gpt.cpp DEPS base # kernels\n device)\n"},
                    ("lib/model/gpt.cpp:3", "is of kernels"))

    def test_a_tree_without_git_is_walked_without_results(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("lib/base/error.h", "build/release/made.cpp", "data/text", "runs/a/recipe.yaml",
                         "scripts/__pycache__/a.pyc"):
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("x\n")
            self.assertEqual([str(p) for p in Tree(folder).files], ["lib/base/error.h"])
            pathlib.Path(folder, ".git").mkdir()   # git is there and does not know it
            self.assertEqual([str(p) for p in Tree(folder).files], ["lib/base/error.h"])

    def test_an_empty_tree_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(SystemExit):
            Tree(folder)

    def test_helpers_of_a_folder_have_different_names(self):
        one = "namespace mtrain::model {\nnamespace {\nint rows(int n) { return n; }\n}\n}\n"
        two = "namespace mtrain::model {\nnamespace {\n// as many\nlong rows(long n) {\n  return n;\n}\n}\n}\n"
        self.expect({"lib/model/a.cpp": one, "lib/model/b.cpp": two, "lib/base/c.cpp": one.replace("::model", "")},
                    ("lib/model/b.cpp:4", "lib/model/a.cpp has a rows in its unnamed namespace, too"))
        for kind in ("struct Rows {\n  int n = 0;\n};", "constexpr int kRows[] = {1, 2};", "template <class T> T rows(T n);"):
            body = "namespace mtrain::model {\nnamespace {\n" + kind + "\n}\n}\n"
            self.expect({"lib/model/a.cpp": body, "lib/model/b.cpp": body},
                        ("lib/model/b.cpp:3", "ows in its unnamed namespace, too"))
        alias = "namespace mtrain::model {\nnamespace {\nnamespace fs = std::filesystem;\nusing Clock = int;\n}\n}\n"
        self.expect({"lib/model/a.cpp": alias, "lib/model/b.cpp": alias})

    def test_each_test_file_has_its_own_namespace(self):
        self.expect({"test/unit/base_error_test.cpp": "namespace base_error_test {\n}\n",
                     "test/parity/tensor_test.cpp": "namespace parity_tensor_test {\n}\n"})
        self.expect({"test/parity/tensor_test.cpp": "namespace tensor_test {\n}\n"},
                    ("test/parity/tensor_test.cpp:1", "is not in a namespace of its own, parity_tensor_test"))

    def test_external_is_no_dependency(self):
        self.expect({"lib/model/CMakeLists.txt": "mtrain_lib(model SOURCES a DEPS base device EXTERNAL kernels)\n"},
                    ("lib/model/gpt.cpp:3", "is of kernels"))

    def test_kernels_include_only_base(self):
        self.expect({"kernels/norm.h": '#include "device/cpu/backend.h"\n#include "base/error.h"\n'},
                    ("kernels/norm.h:1", "is of device, which is not in the DEPS of mtrain_lib(kernels ...)"))

    def test_kernels_may_not_list_more(self):
        self.expect({"kernels/CMakeLists.txt": "mtrain_lib(kernels SOURCES a.cpp DEPS base device)\n",
                     "kernels/norm.h": '#include "device/cpu/backend.h"\n#include "base/error.h"\n'},
                    ("kernels/CMakeLists.txt:1", "kernels may not depend on device"))

    def test_a_model_as_a_value_stands_above_base_alone(self):
        spec = {"lib/spec/CMakeLists.txt": "mtrain_lib(spec SOURCES spec.cpp DEPS base)\n",
                "lib/spec/spec.cpp": '#include "base/error.h"\n'}
        self.expect(spec)
        self.expect({"lib/spec/CMakeLists.txt": "mtrain_lib(spec SOURCES spec.cpp DEPS base device)\n",
                     "lib/spec/spec.cpp": '#include "base/error.h"\n#include "device/cpu/backend.h"\n'},
                    ("lib/spec/CMakeLists.txt:1", "spec may not depend on device"))

    def test_the_body_does_not_read_recipes(self):
        recipe = {"lib/recipe/CMakeLists.txt": "mtrain_lib(recipe SOURCES recipe.cpp)\n", "lib/recipe/recipe.h": ""}
        plan = {"lib/plan/CMakeLists.txt": "mtrain_lib(plan SOURCES plan.cpp DEPS recipe)\n",
                "lib/plan/plan.cpp": '#include "recipe/recipe.h"\n'}
        self.expect({**recipe, **plan})
        self.expect({**recipe, "lib/model/gpt.cpp": CLEAN["lib/model/gpt.cpp"] + '#include "recipe/recipe.h"\n',
                     "lib/model/CMakeLists.txt": "mtrain_lib(model SOURCES gpt.cpp DEPS base device kernels recipe)\n"},
                    ("lib/model/CMakeLists.txt:1", "model may not depend on recipe: that is for interchange, plan and apps/"))

    def test_circle_of_libraries(self):
        self.expect({"lib/a/CMakeLists.txt": "mtrain_lib(a SOURCES a.cpp DEPS b)\n",
                     "lib/a/a.h": "", "lib/a/a.cpp": '#include "b/b.h"\n',
                     "lib/b/CMakeLists.txt": "mtrain_lib(b SOURCES b.cpp DEPS a)\n",
                     "lib/b/b.h": "", "lib/b/b.cpp": '#include "a/a.h"\n'},
                    ("lib/a/CMakeLists.txt:1", "circle of libraries: a -> b -> a"))

    def test_circle_of_headers(self):
        self.expect({"lib/base/error.h": '#include "base/b.h"\n', "lib/base/b.h": '#include "base/error.h"\n'},
                    ("lib/base/error.h:1", "circle of headers: lib/base/error.h -> lib/base/b.h -> lib/base/error.h"))

    def test_undeclared_folder(self):
        self.expect({"lib/stray/stray.h": "#pragma once\n"}, ("lib/stray/stray.h:1", "lib/stray is undeclared"))

    def test_undeclared_kernels(self):
        errors = self.findings({"kernels/CMakeLists.txt": None}).errors
        self.assertTrue(any(e.startswith("kernels/norm.h:1: kernels is undeclared") for e in errors), errors)

    def test_file_in_lib_itself(self):
        self.expect({"lib/stray.h": "#pragma once\n"}, ("lib/stray.h:1", "not to lib/ itself"))

    def test_unknown_dependency(self):
        self.expect({"lib/base/CMakeLists.txt": "mtrain_lib(base SOURCES error.cpp)\nmtrain_lib(odd SOURCES x)\n"},
                    ("lib/base/CMakeLists.txt:2", "they carry one name"))
        self.expect({"lib/model/CMakeLists.txt": "mtrain_lib(model SOURCES g DEPS base device kernels comm)\n"},
                    ("lib/model/CMakeLists.txt:1", "names comm, which is not a library here"),
                    notes=[("lib/model/CMakeLists.txt:1", "includes nothing of it")])

    def test_unused_dependency_is_a_note(self):
        self.expect({"lib/device/device.cpp": "int x;\n"},
                    notes=[("lib/device/CMakeLists.txt:1", "lists base in its DEPS and includes nothing of it")])

    def test_missing_and_relative_includes(self):
        self.expect({"lib/base/error.cpp": '#include "base/eror.h"\n#include "../device/cpu/backend.h"\n'},
                    ("lib/base/error.cpp:1", "names no file"), ("lib/base/error.cpp:2", "names no file"))

    def test_angle_brackets_around_our_header(self):
        self.expect({"lib/base/error.cpp": "#include <device/cpu/backend.h>\n"},
                    ("lib/base/error.cpp:1", "is a header of the house"))

    def test_app_reaches_only_what_it_links(self):
        self.expect({"apps/mtrain/CMakeLists.txt": "target_link_libraries(mtrain PRIVATE mtrain_base)\n"},
                    ("apps/mtrain/main.cpp:2", "is of device, which is not in the libraries linked"))

    def test_app_of_another_app(self):
        self.expect({"apps/other/CMakeLists.txt": "target_link_libraries(other PRIVATE mtrain_base)\n",
                     "apps/other/main.cpp": '#include "apps/mtrain/commands.h"\n'},
                    ("apps/other/main.cpp:1", "belongs to another program"))

    def test_cuda_header_outside_its_folders(self):
        for header in ("cuda_runtime.h", "cublasLt.h", "cudnn.h", "nccl.h", "cub/cub.cuh"):
            with self.subTest(header):
                self.expect({"lib/device/device.cpp": f'#include "base/error.h"\n#include <{header}>\n'},
                            ("lib/device/device.cpp:2", f"<{header}> is for lib/device/cuda"))

    # sources

    def test_preprocessor_branch_on_a_backend(self):
        gpt = CLEAN["lib/model/gpt.cpp"]
        for line in ("#ifdef MTRAIN_HAS_CUDA", "#if defined(USE_NCCL)", "# ifndef MTRAIN_OPENBLAS", "#elif __NVCC__"):
            with self.subTest(line):
                self.expect({"lib/model/gpt.cpp": gpt + line + "\n#endif\n"},
                            ("lib/model/gpt.cpp:8", "a preprocessor branch on"))
        self.expect({"apps/mtrain/main.cpp": "#ifdef MTRAIN_HAS_CUDA\n#endif\n"},
                    ("apps/mtrain/main.cpp:1", "a preprocessor branch on CUDA"))

    def test_branch_on_a_backend(self):
        gpt = CLEAN["lib/model/gpt.cpp"]
        for line in ("if (cuda) f();", "if constexpr (is_gpu) f();", "if (d->cpu && x) f();"):
            with self.subTest(line):
                self.expect({"lib/model/gpt.cpp": gpt + line + "\n"}, ("lib/model/gpt.cpp:8", "a branch on"))
        self.expect({"lib/model/gpt.cpp": gpt + "if (cpus > 2) f();\n"})

    def test_branch_on_the_kind_of_device(self):
        gpt = CLEAN["lib/model/gpt.cpp"]
        for line in ("return !device.is_cuda() && x;", "if (d->is_cpu()) f();", "g(r.device == DeviceChoice::cuda);",
                     "auto y = mtrain::DeviceChoice::cpu != x;", "case DeviceChoice::cuda: f();",
                     "g(plan.device.kind == DeviceKind::cuda);"):
            with self.subTest(line):
                self.expect({"lib/model/gpt.cpp": gpt + line + "\n"},
                            ("lib/model/gpt.cpp:8", "a branch on the kind of device"))
                self.expect({"apps/mtrain/commands.h": "void f() {\n  " + line + "\n}\n"},
                            ("apps/mtrain/commands.h:2", "a branch on the kind of device"))
                self.expect({"lib/device/cpu/backend.h": line + "\n"})
        self.expect({"lib/model/gpt.cpp": gpt + "const DeviceChoice c = DeviceChoice::cuda;  // is_cuda()\n"})
        # A recipe's settings and a plan are settled by what the recipe says of its device.
        recipe = {"lib/recipe/CMakeLists.txt": "mtrain_lib(recipe SOURCES rules.cpp)\n",
                  "lib/recipe/rules.cpp": "bool gpu(DeviceChoice c) { return c == DeviceChoice::cuda; }\n"}
        self.expect(recipe)

    def test_known_branches_on_the_kind_of_device(self):
        gpt, known = CLEAN["lib/model/gpt.cpp"], {("lib/model/gpt.cpp", "return d.is_cuda();"): "since the beginning"}
        known_one = "bool known() {\n  return d.is_cuda();\n}\n"
        self.expect({"lib/model/gpt.cpp": gpt + known_one}, known_device_branches=known)
        self.expect({"lib/model/gpt.cpp": gpt + known_one + "bool x = d.is_cuda();\n"},
                    ("lib/model/gpt.cpp:11", "'is_cuda()'"), known_device_branches=known)
        self.expect({}, notes=[("lib/model/gpt.cpp:1", "is not here any more")], known_device_branches=known)

    def test_namespace_of_another_folder(self):
        lines = "namespace mtrain::base {\nclass Error;\n}\n\nnamespace mtrain::model {\nint gpt();\n}\n"
        self.expect({"lib/model/config.h": "#pragma once\n" + lines + "\nnamespace mtrain {\nusing model::gpt;\n}\n",
                     "lib/base/dtype.h": "#pragma once\nnamespace mtrain {\nint error();\n}\n"})
        self.expect({"lib/model/config.h": "#pragma once\nnamespace mtrain {\nint gpt();\n}\n"},
                    ("lib/model/config.h:2", "lib/model is the namespace mtrain::model"))

    def test_work_left_behind(self):
        for word in ("TO" "DO", "FIX" "ME", "XX" "X", "not imple" "mented", "Not yet Imple" "mented"):
            with self.subTest(word):
                self.expect({"README.md": f"# A house\n\n{word}: a roof\n"}, ("README.md:3", "finish it or leave it out"))
        self.expect({"README.md": "method, todo, TODOS, mktemp name.XXXXXX\n"})

    def test_path_of_one_machine(self):
        for path in ("/home" "/ada/data", "/root" "/x", "/work" "/main"):
            with self.subTest(path):
                self.expect({"lib/base/error.cpp": f'const char* p = "{path}";\n'},
                            ("lib/base/error.cpp:1", f"'{path}' is a path of one machine"))
        self.expect({"README.md": "https://example.org/ho" "me/x and $HOME/wo" "rk/x and a/wo" "rk/b\n"})

    def test_line_ends(self):
        self.expect({"README.md": "# A house"}, ("README.md:1", "no line break"))
        self.expect({"README.md": "# A house \n"}, ("README.md:1", "blanks at the end"))
        self.expect({"README.md": "a\nb\r\n"}, ("README.md:2", "a carriage return"))
        self.expect({"picture.png": "\0 \n binary"})

    def test_long_file(self):
        self.expect({"lib/base/error.cpp": "int x;\n" * 600})
        self.expect({"lib/base/error.cpp": "int x;\n" * 601}, notes=[("lib/base/error.cpp:1", "601 lines")])
        self.expect({"lib/base/error.cpp": "int x;\n" * 901}, ("lib/base/error.cpp:1", "901 lines"))

    def test_long_function(self):
        def source(head, lines=80, tail="}\n"):
            return "namespace mtrain::model {\n" + head + " {\n" + "  x();\n" * (lines - 1) + tail + "}\n"
        for head, name in (("int gpt()", "gpt"), ("template <class T, int N = 3> T Gpt<T>::forward(Step& s) const", "forward"),
                           ("Gpt::Gpt(int a) : a_(a), b_{a}", "Gpt"), ("bool operator==(const Gpt& a, const Gpt& b)", "operator"),
                           ("__global__ void __launch_bounds__(128, 1) norm(Args a)", "norm"),
                           ('TEST_CASE("a } in a text")', "TEST_CASE"), ("const auto f = [](int a)", "a function"),
                           ("struct stat* of(const char* path)", "of")):
            with self.subTest(head):
                self.expect({"lib/model/long.h": source(head)})
                self.expect({"lib/model/long.h": source(head, 81)},
                            ("lib/model/long.h:2", f"{name} has 81 lines; more than 80 are two ideas"))
        for folder, suffix in (("kernels/cuda", "cu"), ("kernels/cuda/device", "cuh"), ("test/unit", "cpp"), ("scripts/bench", "cpp")):
            self.expect({f"{folder}/long.{suffix}": source("int gpt()", 81)}, (f"{folder}/long.{suffix}:2", "gpt has 81 lines"))
        # A member function; and what is long and no function.
        member = "struct Gpt : Base {\n  int a = 0;\n  int gpt() {\n" + "    x();\n" * 80 + "  }\n};\n"
        self.expect({"lib/model/long.h": member}, ("lib/model/long.h:3", "gpt has 81 lines"))
        for long in ("struct Gpt {\n" + "  int f() { return 1; }\n" * 90 + "};\n", "const Row kRows[] = {\n" + "  {1, f(2)},\n" * 90 + "};\n",
                     "const std::vector<int> kRows{\n" + "  1,\n" * 90 + "};\n", "enum class E : int {\n" + "  a,\n" * 90 + "};\n",
                     "const char* kText = R\"x(int f() {\n" + "{\n" * 90 + ")x\";\n"):
            self.expect({"lib/model/long.h": long})

    def test_braces_that_do_not_match(self):
        self.expect({"lib/base/error.cpp": "int error() {\n#if A\n  if (a) {\n#else\n  if (b) {\n#endif\n  }\n  return '{' + 1'000;\n}\n"})
        self.expect({"lib/base/error.cpp": "int error() {\n"}, ("lib/base/error.cpp:1", "this brace matches none"))
        self.expect({"lib/base/error.cpp": "int error() {\n}\n}\n"}, ("lib/base/error.cpp:3", "this brace matches none"))

    # pages

    def test_tables_that_do_not_render(self):
        head = "# A house\n\n| a | b |\n|---|---|\n"
        self.expect({"README.md": head + "| `x \\| y` | 2 |\n"})
        self.expect({"README.md": head + "| `x | y` | 2 |\n"}, ("README.md:5", "3 cells under a header of 2"))
        self.expect({"README.md": head + "| 1 |\n"}, ("README.md:5", "1 cells under a header of 2"))
        self.expect({"README.md": head + "| 1 | 2\n"}, ("README.md:5", "ends with |"))
        self.expect({"README.md": head + "| 1 | 2 |\n\n| 3 | 4 |\n"}, ("README.md:7", "without a header line"))
        self.expect({"README.md": head + "| 1 | " + "long " * 50 + "|\n"}, ("README.md:5", "a cell of 249 characters"))

    def test_links_that_lead_nowhere(self):
        pages = {"docs/README.md": "# Pages\n\n[a](a.md#the-key-x_y)\n", "docs/a.md": "# A\n\n## The key `x_y`\n"}
        self.expect(pages)
        self.expect({**pages, "README.md": "[a](docs/a.md), [b](docs), [c](https://example.org/x)\n"})
        self.expect({**pages, "README.md": "[a](docs/b.md)\n"}, ("README.md:1", "leads to no file"))
        self.expect({**pages, "README.md": "[a](docs/a.md#the-key)\n"}, ("README.md:1", "leads to no heading"))
        self.expect({**pages, "docs/b.md": "# B\n"}, ("docs/b.md:1", "does not list this page"))

    def test_long_sentences(self):
        self.expect({"README.md": "word " * 35 + "end.\n"}, ("README.md:1", "a sentence of 36 words"))
        self.expect({"README.md": "word " * 34 + "end. Next.\n\n- item\n- " + "word " * 34 + "end\n"})

    def test_blocks_of_commands(self):
        fence = "`" * 3
        self.expect({"README.md": f"{fence}bash\nfor i in 1 2; do\n  echo $i\ndone\n{fence}\n"})
        self.expect({"README.md": f"{fence}bash\necho 'a\n{fence}\n"}, ("README.md:2", "cannot parse"))
        self.expect({"README.md": f"{fence}\na\n{fence}\n"}, ("README.md:1", "a block needs a language"))
        self.expect({"README.md": f"{fence}text\nmtrain --help\n{fence}\n"}, ("README.md:2", "outside of a"))
        self.expect({"README.md": f"<!-- not run: -->\n{fence}bash\nls\n{fence}\n"}, ("README.md:1", "needs a text"))
        self.expect({"README.md": f"<!-- exit code: two -->\n{fence}bash\nls\n{fence}\n"},
                    ("README.md:1", "is not an exit code"))

    def test_a_patch_that_does_not_fit(self):
        page = "```bash\ngit apply <<'END'\n--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n-{}\n+two\nEND\n```\n"
        self.expect({"notes.txt": "one\n", "README.md": page.format("one")})
        self.expect({"notes.txt": "one\n", "README.md": page.format("three")}, ("README.md:2", "the patch does not fit"))

    def test_the_options_that_a_text_names_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, "a.md")
            page.write_text("Use `mtrain data build --input=x --split y` and\n`mtrain --dry-run`, not `--help`.\n")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                check_docs.print_options([page])
        self.assertEqual(printed.getvalue(), f"{page}:1\tmtrain data build\t--input\n{page}:1\tmtrain data build\t--split\n"
                         f"{page}:2\tmtrain\t--dry-run\n")

    def test_the_commands_of_a_block_are_found_whole(self):
        block = check_docs.Block(1, "bash", None)
        block.lines = ["# why", "cat > a <<'END'", "x", "END", "", "mtrain a \\", "  b", "ls"]
        self.assertEqual(check_docs.commands(block), ([(3, "cat > a <<'END'\nx\nEND"), (7, "mtrain a \\\n  b"), (9, "ls")], None))

    # clang-tidy

    def test_the_source_that_a_file_is_checked_within(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, "kernels/cuda/device/tile.cuh": "", "kernels/cuda/norm.cu": '#include "device/tile.cuh"\n',
                               "build/on_cpu/norm.cpp": '#include "kernels/cuda/norm.cu"\n'}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            compiled = ("lib/base/error.cpp", "lib/device/device.cpp", "lib/model/gpt.cpp", "build/on_cpu/norm.cpp")
            sources = check_tidy.Sources(compiled, Tree(folder))
            for file, source in {"lib/model/gpt.cpp": "lib/model/gpt.cpp", "lib/base/error.h": "lib/base/error.cpp",
                                 "lib/device/cpu/backend.h": "lib/device/device.cpp", "kernels/norm.h": "lib/model/gpt.cpp",
                                 "kernels/cuda/norm.cu": "build/on_cpu/norm.cpp",
                                 "kernels/cuda/device/tile.cuh": "build/on_cpu/norm.cpp",
                                 "lib/device/cuda/backend.cpp": None, "apps/mtrain/commands.h": None}.items():
                self.assertEqual(sources.of(file), source, file)

    def test_a_finding_in_a_recorded_file(self):
        clean = "int* none() { return nullptr; }\n"
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            source, header, other = (root / "lib/a" / name for name in ("a.cpp", "a.h", "other.cpp"))
            (root / "build/tidy").mkdir(parents=True)
            source.parent.mkdir(parents=True)
            (root / "scripts").mkdir()
            (root / ".clang-tidy").write_text("Checks: '-*,modernize-use-nullptr,misc-unused-alias-decls'\n"
                                              "HeaderFilterRegex: '/lib/'\n")
            source.write_text('#include "a.h"\n' + clean)
            header.write_text("inline " + clean.replace("none", "other"))
            other.write_text(clean)
            (root / "build/tidy/compile_commands.json").write_text(json.dumps(
                [{"directory": folder, "file": str(f), "command": f"c++ -std=c++20 -c {f}"} for f in (source, other)]))

            def findings(*arguments):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    code = check_tidy.run(root, arguments)
                return code, printed.getvalue()

            if check_tidy.installed_version() != check_tidy.VERSION:
                return   # nothing is recorded for it
            self.assertIn("2 sources for 3 files, 0 findings; 3 of 3", findings("--record")[1])
            self.assertIn("0 sources for 0 files", findings()[1])
            text = source.read_text()
            source.write_text("// Comments do not count.\n" + text)
            self.assertIn("0 sources for 0 files", findings()[1])
            source.write_text("// NOLINTNEXTLINE\n" + text)   # but for those that turn a check off
            self.assertIn("1 sources for 1 files", findings()[1])
            source.write_text(text)
            self.assertIn("before 3 files, which are not checked", findings("--all", "--seconds", "0")[1])
            for planted, text in ((source, source.read_text()), (header, header.read_text())):
                with self.subTest(planted.name):
                    planted.write_text(text.replace("nullptr", "0"))
                    for arguments in ((), ("--record",), ("--all",)):
                        code, printed = findings(*arguments)
                        self.assertEqual(code, 1, printed)
                        self.assertIn(f"lib/a/{planted.name}:", printed)
                        self.assertIn("modernize-use-nullptr", printed)
                    planted.write_text(text)   # as it was recorded
                    self.assertEqual(findings("--record")[0], 0)
            # Both sources are checked together, but for what clang-tidy finds only in a source by itself.
            other.write_text(clean + "namespace inner {}\nnamespace alias = inner;\n")
            self.assertIn("misc-unused-alias-decls", findings("--all")[1])
            other.unlink()
            (root / ".clang-tidy").write_text("Checks: '-*,modernize-use-override'\nHeaderFilterRegex: '/lib/'\n")
            self.assertIn("1 sources for 2 files", findings()[1])

    # golden files

    def test_golden_files_are_compared_by_their_numbers(self):
        stored = json.loads((pathlib.Path(__file__).resolve().parents[1] / "test/golden/rope.json").read_text())
        computed = json.loads(json.dumps(stored))
        for case in computed["cases"].values():
            case["config"]["transformers_version"] = "99.0.0"
        compare = golden_numbers.differences
        self.assertEqual(golden_numbers.without_versions(stored), golden_numbers.without_versions(computed))
        self.assertNotEqual(compare(stored, computed, 1e-5), [])
        numbers = {name: case["frequencies"] for name, case in computed["cases"].items()}
        self.assertEqual(compare(numbers, numbers, 1e-5), [])
        changed = {**numbers, "yarn": [*numbers["yarn"][:-1], numbers["yarn"][-1] + 1e-3]}
        self.assertEqual(len(compare(numbers, changed, 1e-5)), 1)
        self.assertIn("/yarn[63]", compare(numbers, changed, 1e-5)[0])
        self.assertEqual(len(compare(numbers, {**numbers, "yarn": numbers["yarn"][1:]}, 1e-5)), 1)
        self.assertEqual(len(compare(numbers, {k: v for k, v in numbers.items() if k != "yarn"}, 1e-5)), 1)
        self.assertEqual(len(compare([1.0], [math.nan], 1e-5)), 1)
        self.assertEqual(len(compare([1e9], [1e9 + 1e5], 1e-5)), 1)


class Prose(unittest.TestCase):
    """Plants retired words and long sentences."""

    def expect(self, files, *findings):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            report = Report()
            check_prose.check(Tree(folder), report, None)
            self.assertEqual(len(report.errors), len(findings), report.errors)
            for where, text in findings:
                self.assertTrue(any(f.startswith(where + ":") and text in f for f in report.errors), (where, report.errors))

    def test_each_retired_pattern_names_its_replacement(self):
        for text, instead in (
                ("This goes on with step 2.", "continues"), ("The run can go on.", "continues"),
                ("Used in the place of rows.", "instead of"), ("The size is no multiple of 8.", "is not a"),
                ("It has another type than rank 0.", "a different ... from"), ("They round otherwise than one rank.", "differently"),
                ("It is right in the mean.", "on average"), ("Weights are rounded at random.", "stochastic rounding"),
                ("All products of matrices.", "GEMM"), ("It takes a linear's wish.", "request"), ("What of a step is kept.", "two sentences"),
                ("The host is told the count.", "reports"), ("It tells of a mistake.", "reports"), ("What the log says of it.", "describes"),
                ("Else nothing of it is used.", "ignored"), ("It is made anew.", "again"), ("It runs behind the last update.", "after")):
            self.expect({"lib/a/a.h": f"int a;\n// {text}\n"}, ("lib/a/a.h:2", instead))

    def test_words_with_another_meaning_pass(self):
        for text in ("There is no GPU.", "It is no longer than 8.", "The gather hides behind compute.", "A killed run leaves files behind.",
                     "Another rank, rather than this one.", "In the mean over tokens.", "Runs can be told apart.", "`goes on with` is code.",
                     "The option --forward-behind.", "Chosen at random."):
            self.expect({"lib/a/a.h": f"// {text}\n"})

    def test_where_words_are_looked_for(self):
        self.expect({"lib/a/a.cpp": 'int a = 1\'000;  // the size\n// is no\n// multiple of 8\nauto b = "the size "\n  "is no multiple";\n',
                     "kernels/a.cu": "/* A note.\n * It goes on with b. */\n", "test/unit/a.cpp": 'auto a = "it goes on with b";\n',
                     "scripts/a.sh": "# usage\necho 'it goes on with b' # it goes on with c\n", "a.yaml": "a: 1  # goes on with b\n",
                     "scripts/a.py": 'def a():\n    """First.\n\n    It goes on with b.\n    """\n    return "goes on with c"  # goes on with d\n',
                     "docs/a.md": "# A\n\nIt\ngoes on with b.\n\n```bash\ngoes on with c\n```\n\n| a |\n|---|\n| goes on with d |\n"},
                    ("lib/a/a.cpp:2", "is not a"), ("lib/a/a.cpp:5", "is not a"), ("kernels/a.cu:2", "continues"), ("scripts/a.sh:2", "continues"),
                    ("a.yaml:1", "continues"), ("scripts/a.py:4", "continues"), ("scripts/a.py:6", "continues"), ("docs/a.md:4", "continues"),
                    ("docs/a.md:12", "continues"))

    def test_a_sentence_has_at_most_35_words(self):
        self.expect({"lib/a/a.h": f"// Short.\n// {'word ' * 18}\n// {'word ' * 17}.\n//   usage {'word ' * 40}\n"})
        self.expect({"lib/a/a.h": f"// Short.\n// {'word ' * 18}\n// {'word ' * 18}.\n"}, ("lib/a/a.h:2", "a sentence of 36 words, more than 35"))
        self.expect({"a.sh": f"#   a.sh {'word ' * 40}\n# - {'word ' * 20}\n# - {'word ' * 20}\n# {'word ' * 36}\n"}, ("a.sh:4", "36 words"))

    def test_only_the_folders_of_the_list_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.sh").write_text("# it goes on with b\n")
            report = Report()
            self.assertEqual(check_prose.check(Tree(folder), report, ("scripts",)), 0)
            self.assertEqual(report.errors, [])


class Sass(unittest.TestCase):
    def faults(self, source, kernel, stack, *instructions, arch="sm_90a"):
        namespace = f"_GLOBAL__N__7d2effba_{len(source) + 3}_{source}_cu_abd8c283"
        symbol = f"_ZN6mtrain7kernels4cuda{len(namespace)}{namespace}{len(kernel)}{kernel}ILi8EEEvPf"
        kernels = sass_table.read([f" Function {symbol}:\n", f"  REG:128 STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:1\n",
                                   f"\t\tFunction : {symbol}\n", *(f"        /*{n:04x}*/    {i} ;\n" for n, i in enumerate(instructions))])
        sass_table.demangle(kernels)
        self.assertEqual([(k.source, k.name, k.arguments, k.figures["REG"]) for k in kernels], [(source, kernel, "8", 128)])
        return [fault.split("> ")[1] for fault in sass_table.faults_of(kernels, arch)]

    def test_spills_and_missing_tensor_cores_are_found(self):
        hmma, stl = "HMMA.16816.F32.BF16 R4, R8, R2, R4", "STL [R1], R3"
        no_tensor_core = "has no instruction of a tensor core"
        self.assertEqual(self.faults("grouped_matmul", "float8_rows", 0, hmma), [])
        self.assertEqual(self.faults("grouped_matmul", "float8_rows", 0, "HGMMA.64x128x16.F32 R24"), [])
        self.assertEqual(self.faults("grouped_matmul", "float8_rows", 0, "FFMA R1, R2, R3"), [no_tensor_core])
        self.assertEqual(self.faults("attention_tensor", "forward", 0, "FFMA R1, R2, R3"), [no_tensor_core])
        self.assertEqual(self.faults("muon", "muon_update", 0, "FFMA R1, R2, R3"), [])
        self.assertEqual(self.faults("muon", "muon_update", 8, stl), ["has 8 bytes of stack, and 1 stores to it"])
        self.assertEqual(self.faults("attention_plain", "forward", 8, stl), [])

    def cutlass(self, mma, b_major, result, instruction):
        """Returns the name and the faults of a kernel of CUTLASS with these parts in its symbol."""
        symbol = ("_ZN7cutlass13device_kernelINS_4gemm10collective13CollectiveMmaINS_12Policy" + mma + "EPNS6_IJlSD_EEESO_"
                  f"NSU_5MajorE0ELSW_{b_major}ELNSU_7ScaleInE1ELSX_1EEE17LinearCombinationI{result}LNS_15FloatRoundStyleE2EEEvNT_6ParamsE")
        kernels = sass_table.read([f" Function {symbol}:\n", "  REG:168 STACK:0 SHARED:1024 LOCAL:0\n",
                                   f"\t\tFunction : {symbol}\n", f"        /*0010*/    {instruction} ;\n"])
        sass_table.demangle(kernels)
        return kernels[0].source + ": " + kernels[0].name, sass_table.faults_of(kernels, "sm_90a")

    def test_the_kernels_of_cutlass_multiply_from_shared_memory(self):
        hgmma, qgmma = "HGMMA.64x256x16.F32.BF16 R24", "QGMMA.64x128x32.F32.E5M2.E4M3 R24"
        bf16, e5m2 = "NS_10bfloat16_t", "NS_12float_e5m2_t"
        self.assertEqual(self.cutlass(bf16, 0, "SL_fvf", hgmma), ("cutlass: bf16 rows", []))
        self.assertEqual(self.cutlass(bf16, 1, "SL_fvf", hgmma), ("cutlass: bf16 rows, plain B", []))
        self.assertEqual(self.cutlass(bf16, 0, "ffff", hgmma), ("cutlass: bf16 weights", []))
        self.assertEqual(self.cutlass(e5m2, 0, "ffff", qgmma), ("cutlass: e5m2 weights", []))
        self.assertEqual(self.cutlass(e5m2, 0, "SL_fvf", hgmma)[1], ["cutlass: e5m2 rows has no QGMMA"])
        self.assertEqual(self.cutlass("NS_6half_t", 0, "SL_fvf", hgmma)[1], ["cutlass: ? has no place in HOPPER"])

    def test_a_spill_may_be_allowed_on_one_architecture(self):
        kernel = "rows_in_tensor_cores"
        self.assertEqual(len(self.faults("grouped_matmul", kernel, 8, "HMMA.16816.F32 R4")), 1)
        self.assertEqual(self.faults("grouped_matmul", kernel, 8, "HMMA.16816.F32 R4", arch="sm_100a"), [])

    def test_kernels_that_may_start_early_wait_before_they_access_global_memory(self):
        wait, parameter, load = "ACQBULK", "LDC R1, c[0x0][0x28]", "LDG.E.128 R4, desc[UR4][R2.64]"
        early = "accesses global memory 1 times before it waits"
        self.assertEqual(self.faults("norm", "forward", 0, parameter, wait, load), [])
        self.assertEqual(self.faults("norm", "forward", 0, load, wait), [early])
        self.assertEqual(self.faults("norm", "forward", 0, "ATOMG.E.MAX.S32 R1", wait), [early])
        self.assertEqual(self.faults("muon", "muon_update", 0, "STG.E R1", wait), [early])
        self.assertEqual(self.faults("norm", "forward", 0, load), ["may start early, and does not wait"])
        self.assertEqual(self.faults("norm", "forward", 0, load, arch="sm_80"), [])


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(verbosity=1)
