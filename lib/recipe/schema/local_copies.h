// checkpoint.local: copies of the training on the hosts themselves, between two checkpoints.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

struct LocalCopiesConfig {
  std::string dir;
  int64_t every_steps = 1, replicas = 0;
  double max_gib = 0, replica_gbps = 10;

  static constexpr auto fields = std::tuple{
      Field{"dir", &LocalCopiesConfig::dir,
            "folder on each host for copies of the training, in memory (/dev/shm/<name>) or on a "
            "local disk; no copies unless set"},
      Field{"every_steps",
            &LocalCopiesConfig::every_steps,
            "steps between two copies",
            {.unit = "steps", .min = 1}},
      Field{"replicas",
            &LocalCopiesConfig::replicas,
            "on how many other hosts each host's part is kept as well; 1 survives the loss of a "
            "host",
            {.min = 0, .max = 2}},
      Field{"max_gib",
            &LocalCopiesConfig::max_gib,
            "the most memory and disk that copies may take on a host; 0: what is free",
            {.unit = "GiB", .min = 0}},
      Field{"replica_gbps",
            &LocalCopiesConfig::replica_gbps,
            "the rate at which each host sends replicas; 0: no limit",
            {.unit = "Gbit/s", .min = 0}}};
};

}  // namespace mtrain::recipe
