// Tests how the words of a training's command line are read.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "recipe/load/flags.h"
#include "recipe/load/misplaced_words.h"

namespace recipe_command_line_test {

using namespace mtrain;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

namespace {

using Words = std::vector<std::string>;

Words read(const Words& words) {
  return recipe::train_words(words, {MTRAIN_SOURCE_DIR "/recipes"});
}

// Returns the message and the hint with which the words are refused.
std::string refusal(const Words& words) {
  try {
    read(words);
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("values of the ranks' variables are in no command line that is printed") {
  CHECK(
      recipe::without_secrets({"mtrain", "r.yaml", "launch.env.TOKEN=abc", "env={A: abc}", "a.b=1",
                               "--launch.env.KEY", "abc", "--dry-run", "+env_vars.X=abc"}) ==
      Words{"mtrain", "r.yaml", "launch.env.TOKEN=...", "env=...", "a.b=1", "--launch.env.KEY",
            "...", "--dry-run", "+env_vars.X=..."});
  for (const Words& words : {Words{"r.yaml", "launch.env.TOKEN=", "abc"},
                             {"r.yaml", "launch.env.TOKEN", "=", "abc"},
                             {"r.yaml", "launch.env.TOKEN", "=abc"},
                             {"r.yaml", "launch.env={A:", "abc}"},
                             {"r.yaml", "launch.env.TOKEN", "abc"}}) {
    CAPTURE(words);
    CHECK_THAT(refusal(words), !Contains("abc") && (Contains("TOKEN") || Contains("launch.env")));
  }
}

TEST_CASE("a command is not a training, even if a recipe has its name") {
  for (const char* command : {"eval", "generate", "export", "import", "data"})
    CHECK_FALSE(recipe::begins_training({command}, {MTRAIN_SOURCE_DIR "/recipes"}));
  CHECK(recipe::begins_training({"train"}, {}));
  CHECK(recipe::begins_training({"quickstart"}, {MTRAIN_SOURCE_DIR "/recipes"}));
}

TEST_CASE("a recipe is the first bare word, or the value of -r, -c, --recipe or --config") {
  const Words expected{"--recipe", "r.yaml", "a.b=1"};
  CHECK(read({"r.yaml", "a.b=1"}) == expected);
  CHECK(read({"-c", "r.yaml", "a.b=1"}) == expected);
  CHECK(read({"-r", "r.yaml", "a.b=1"}) == expected);
  CHECK(read({"--config", "r.yaml", "a.b=1"}) == expected);
  CHECK(read({"--recipe", "r.yaml", "a.b=1"}) == expected);
  CHECK(read({"--config=r.yaml"}) == Words{"--recipe=r.yaml"});
  CHECK(read({"train", "r.yaml"}) == Words{"train", "--recipe", "r.yaml"});
  CHECK(read({"a.b=1", "--dry-run", "dir/r.yml"}) ==
        Words{"a.b=1", "--dry-run", "--recipe", "dir/r.yml"});
  CHECK(read({"--world-size", "8", "llama3_8b"}) ==
        Words{"--world-size", "8", "--recipe", "llama3_8b"});
  CHECK(read({"r.yaml", "--optimizer.lr", "1e-3"}) ==
        Words{"--recipe", "r.yaml", "optimizer.lr=1e-3"});
  CHECK(read({"shedule"}) == Words{"shedule"});  // the program names the command
}

TEST_CASE("blanks within a setting are named, with the setting as it was meant") {
  for (const Words& words : {Words{"r.yaml", "optimizer.lr", "=", "1e-3"},
                             {"r.yaml", "optimizer.lr", "=1e-3"},
                             {"r.yaml", "optimizer.lr=", "1e-3"}}) {
    INFO(words[1]);
    CHECK_THAT(refusal(words),
               Contains("no spaces around `=`") && Contains("hint: write optimizer.lr=1e-3"));
  }
  CHECK_THAT(refusal({"optimizer.lr", "=", "1e-3"}), Contains("write optimizer.lr=1e-3"));
  CHECK_THAT(refusal({"r.yaml", "optimizer.lr", "1e-3"}),
             Contains("`optimizer.lr` has no value") && Contains("write optimizer.lr=1e-3"));
  CHECK_THAT(refusal({"r.yaml", "optimizer.betas=[0.9,", "0.95]"}),
             Contains("ends at a space") && Contains("quotes"));
  CHECK_THAT(refusal({"r.yaml", "again"}), Contains("`again` is not an override"));
  // A value may be empty, and a list may be complete.
  CHECK(read({"r.yaml", "launch.env={A: b}", "model.from="}).size() == 4);
}

TEST_CASE("a word of another tool is a setting, though an option is as near") {
  CHECK(read({"r.yaml", "--precision", "bf16"}) == Words{"--recipe", "r.yaml", "precision=bf16"});
  CHECK(read({"r.yaml", "--dry-rn"}) == Words{"--recipe", "r.yaml", "--dry-rn"});
}

TEST_CASE("options of the launcher go before the recipe") {
  CHECK_THAT(refusal({"r.yaml", "--nproc_per_node", "2", "a.b=1"}),
             Contains("--nproc_per_node is an option of mtrain-launch") &&
                 Contains("mtrain-launch --nproc_per_node=2 r.yaml a.b=1"));
  CHECK_THAT(refusal({"--nnodes=2", "r.yaml", "--node-rank=1"}),
             Contains("mtrain-launch --nnodes=2 --node_rank=1 r.yaml"));
  CHECK_THAT(refusal({"r.yaml", "--standalone", "launch.env.TOKEN=abc"}),
             Contains("mtrain-launch --standalone r.yaml launch.env.TOKEN=..."));
  CHECK_THAT(refusal({"--nproc_per_node", "r.yml", "a=[1, 2]"}),
             Contains("mtrain-launch --nproc_per_node=2 r.yml 'a=[1, 2]'"));
  CHECK_THAT(refusal({"quickstart", "--rdzv_conf", "rank=1", "--master_addr", "node0"}),
             Contains("mtrain-launch --rdzv_conf=rank=1 --master_addr=node0 quickstart"));
  CHECK_THAT(refusal({"--nnodes", "2", "a.b=1"}),
             Contains("mtrain-launch --nnodes=2 RECIPE a.b=1"));
}

TEST_CASE("a hint keeps the options that the launcher was given") {
  const std::string launcher = "mtrain-launch --nproc_per_node=8";
  CHECK_THROWS_WITH(
      recipe::refuse_misplaced({"r.yaml", "--nnodes", "2", "--node_rank", "0"}, {}, launcher),
      Contains("write it before the recipe: mtrain-launch --nproc_per_node=8 --nnodes=2 "
               "--node_rank=0 r.yaml"));
  CHECK_THROWS_WITH(recipe::refuse_misplaced({"r.yaml", "--gpus", "4"}, {}, launcher),
                    EndsWith("write mtrain-launch --nproc_per_node=8 r.yaml"));
  CHECK_THROWS_WITH(recipe::refuse_misplaced({"--cfg", "r.yaml", "a.b=1"}, {}, launcher),
                    EndsWith("write mtrain-launch --nproc_per_node=8 r.yaml a.b=1"));
}

TEST_CASE("a number of ranks is taken over if the launcher takes it") {
  struct Row {
    Words words;
    const char* hint;
  };
  for (const Row& row :
       {Row{{"r.yaml", "--gpus", "4", "a.b=1"}, "--nproc_per_node=4 r.yaml a.b=1"},
        Row{{"r.yaml", "--gpus", "0,1"}, "--nproc_per_node=2 r.yaml"},
        Row{{"r.yaml", "--gpus=0,1,2,3"}, "--nproc_per_node=4 r.yaml"},
        Row{{"r.yaml", "--gpus=-1"}, "--nproc_per_node=2 r.yaml"},
        Row{{"r.yaml", "--gpus", "-1"}, "--nproc_per_node=2 r.yaml"},
        Row{{"--gpus", "r.yml"}, "--nproc_per_node=2 r.yml"},
        Row{{"--gpus", "quickstart", "--dry-run"}, "--nproc_per_node=2 quickstart --dry-run"},
        Row{{"--gpus", "auto", "r.yaml"}, "--nproc_per_node=auto r.yaml"},
        Row{{"--gpus", "4", "base=r.yaml"}, "--nproc_per_node=4 RECIPE base=r.yaml"}}) {
    CAPTURE(row.words);
    CHECK_THAT(refusal(row.words), EndsWith(std::string("write mtrain-launch ") + row.hint));
  }
}

TEST_CASE("options and commands of other tools lead to mtrain's") {
  for (const char* option : {"--nproc", "--gpus", "-n", "--num-processes"}) {
    INFO(option);
    CHECK_THAT(refusal({option, "4", "r.yaml"}),
               Contains(std::string(option) + ": no such option") &&
                   Contains("write mtrain-launch --nproc_per_node=4 r.yaml"));
  }
  for (const char* option : {"--config_file", "--config-file", "--job.config_file", "--cfg"}) {
    INFO(option);
    CHECK_THAT(refusal({option, "good.yaml"}),
               Contains("did you mean --config? write mtrain good.yaml"));
  }
  CHECK_THAT(refusal({"finetune", "llm", "-c", "r.yaml"}),
             Contains("`finetune` is not a command of mtrain") && EndsWith("write mtrain r.yaml"));
  CHECK_THAT(refusal({"automodel", "r.yaml", "a.b=1"}),
             Contains("`automodel` is not a command") && EndsWith("write mtrain r.yaml a.b=1"));
  CHECK_THAT(refusal({"automodel", "finetune", "llm", "-c", "r.yaml", "--nproc-per-node", "8"}),
             EndsWith("mtrain-launch --nproc_per_node=8 -c r.yaml"));
  CHECK_THAT(refusal({"llm", "finetune"}),
             Contains("`llm` is not a command") && Contains("write mtrain sft model.from=FOLDER"));
  CHECK_THAT(refusal({"pretrain", "r.yaml"}), Contains("write mtrain r.yaml"));
  CHECK_THAT(refusal({"run"}), Contains("write mtrain quickstart"));
  CHECK_THAT(refusal({"run", "r.yaml", "a.b=1"}), Contains("write mtrain r.yaml a.b=1"));
  CHECK_THAT(refusal({"--cfg=r.yaml", "a.b=1"}), Contains("write mtrain r.yaml a.b=1"));
  CHECK_THAT(refusal({"resume", "runs/x"}),
             Contains("write mtrain RECIPE checkpoint.load=latest train.run_dir=runs/x"));
  CHECK_THAT(refusal({"resume", "r.yaml"}), EndsWith("write mtrain r.yaml checkpoint.load=latest"));
  CHECK(read({"r.yaml", "finetune=true"}).size() == 3);
}

TEST_CASE("mtrain's options may have underscores") {
  CHECK(read({"r.yaml", "--dry_run", "--world_size=8"}) ==
        Words{"--recipe", "r.yaml", "--dry-run", "--world-size=8"});
}

TEST_CASE("a command line without a recipe is completed, not explained") {
  const auto said = [](const Words& words) {
    return std::string(recipe::no_recipe_error(words, "mtrain").what());
  };
  CHECK_THAT(said({"optimizer.lr=1e-3", "--dry-run"}),
             Contains("no recipe given") &&
                 Contains("write mtrain quickstart optimizer.lr=1e-3 --dry-run"));
  CHECK_THAT(said({"--dry_run"}), Contains("write mtrain quickstart --dry_run"));
  CHECK_THAT(said({"--num-layers", "2"}), Contains("Megatron's model"));
  CHECK_THAT(said({"--no-such-thing", "2"}), Contains("--no-such-thing: no such option"));
}

}  // namespace recipe_command_line_test
