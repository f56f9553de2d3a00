#include <catch2/catch.hpp>

#include "launch/continue_command.h"

namespace launch_continue_command_test {

using mtrain::launch::continue_command;

TEST_CASE("the command that continues a run is the one that started it, and loads the newest") {
  CHECK(continue_command({"mtrain", "--recipe", "r.yaml", "train.steps=10"}) ==
        "mtrain --recipe r.yaml train.steps=10 checkpoint.load=latest");
  CHECK(continue_command({"mtrain-launch", "--nproc_per_node=2", "--recipe", "r.yaml",
                          "checkpoint.load=runs/a", "train.run_dir=runs/b"}) ==
        "mtrain-launch --nproc_per_node=2 --recipe r.yaml train.run_dir=runs/b "
        "checkpoint.load=latest");
  CHECK(continue_command({"mtrain", "-r", "r.yaml", "--load", "runs/a", "--lr", "1e-3"}) ==
        "mtrain -r r.yaml --lr 1e-3 checkpoint.load=latest");
  CHECK(continue_command({"mtrain", "-r", "r.yaml", "checkpoint.load=latest"}) ==
        "mtrain -r r.yaml checkpoint.load=latest");
}

TEST_CASE("words that a shell would change are quoted in the command that continues") {
  CHECK(continue_command({"mtrain", "-r", "my recipe.yaml", "debug.fault={at: save, step: 5}",
                          "it's", "~train.seed", ""}) ==
        "mtrain -r 'my recipe.yaml' 'debug.fault={at: save, step: 5}' 'it'\\''s' '~train.seed' '' "
        "checkpoint.load=latest");
}

}  // namespace launch_continue_command_test
