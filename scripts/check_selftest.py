#!/usr/bin/env python3
"""Plants each mistake that the checks look for in a small tree, and asserts that they find this mistake, at its
place, and nothing else."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

import check_docs
import check_layers
import check_source
import check_tidy
from check_files import Report, Tree

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
                    ("lib/model/CMakeLists.txt:1", "names comm, which is no library here"),
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


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(verbosity=1)
