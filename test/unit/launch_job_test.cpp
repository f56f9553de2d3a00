// Tests how a process finds its rank, by the variables of every launcher.
#include <cstdlib>
#include <map>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "launch/error_file.h"
#include "launch/job.h"
#include "test/support/temporary_folder.h"

namespace launch_job_test {

using namespace mtrain;
using namespace mtrain::launch;

namespace {

// Sets environment variables for a test, and restores the former values.
class Environment {
 public:
  Environment() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_NODEID",
                             "SLURM_LOCALID",
                             "SLURM_NTASKS_PER_NODE",
                             "SLURM_JOB_ID",
                             "SLURM_JOB_NODELIST",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_JOBID",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "MTRAIN_RESTART_COUNT",
                             "TORCHELASTIC_RESTART_COUNT",
                             "TORCHELASTIC_RUN_ID",
                             "MTRAIN_JOB_ID",
                             "MTRAIN_SHARED_JOB_ID",
                             "MTRAIN_ERROR_FILE",
                             "TORCHELASTIC_ERROR_FILE"})
      clear(name);
  }
  ~Environment() {
    for (const auto& [name, value] : before_)
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  void set(const char* name, const char* value) { setenv(name, value, 1); }

 private:
  void clear(const char* name) {
    const char* value = std::getenv(name);
    before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
    unsetenv(name);
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace

TEST_CASE("without a launcher a rank is alone") {
  Environment env;
  CHECK(job_from_environment().size == 1);
  env.set("SLURM_NTASKS", "4");  // a shell inside an allocation: no rank
  CHECK(job_from_environment().size == 1);
}

TEST_CASE("torchrun's variables") {
  Environment env;
  env.set("RANK", "5"), env.set("WORLD_SIZE", "8"), env.set("LOCAL_RANK", "1");
  env.set("LOCAL_WORLD_SIZE", "4"), env.set("MASTER_ADDR", "node0"),
      env.set("MASTER_PORT", "29500");
  Job job = job_from_environment();
  CHECK(job.rank == 5);
  CHECK(job.size == 8);
  CHECK(job.local_rank == 1);
  CHECK(job.local_size == 4);
  CHECK(job.master_addr == "node0");
  CHECK(job.master_port == 29500);
  env.set("MASTER_ADDR", "[::1]");
  CHECK(job_from_environment().master_addr == "::1");
  env.set("TORCHELASTIC_USE_AGENT_STORE", "True");  // torchrun itself serves that port
  CHECK(job_from_environment().master_port == 29501);
}

TEST_CASE("a job has the same id at every restart") {
  Environment env;
  CHECK(job_from_environment().id.empty());  // no launcher
  env.set("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_0/3/error.json");
  const std::string torchrun = job_from_environment().id;
  CHECK(torchrun == "/tmp/torchelastic_a/none_b");
  env.set("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_1/0/error.json");
  CHECK(job_from_environment().id == torchrun);
  env.set("MTRAIN_JOB_ID", "host-1-2");  // set by an mtrain-launch under Slurm or torchrun
  CHECK(job_from_environment().id == "host-1-2");
  env.set("MTRAIN_SHARED_JOB_ID", "other-3-4");  // the launchers elect the one that leads
  CHECK(job_from_environment().id == "other-3-4");
}

TEST_CASE("the variables of a step of Slurm") {
  Environment env;
  env.set("SLURM_PROCID", "3"), env.set("SLURM_STEP_NUM_TASKS", "16"),
      env.set("SLURM_LOCALID", "3");
  env.set("SLURM_NTASKS", "32");  // the tasks of the allocation
  env.set("SLURM_JOB_ID", "77"), env.set("SLURM_JOB_NODELIST", "gpu[001-012]");
  env.set("SLURM_STEP_NODELIST", "gpu[007-009,12],x1");
  const Job slurm = job_from_environment();
  CHECK(slurm.rank == 3);
  CHECK(slurm.size == 16);
  CHECK(slurm.local_rank == 3);
  CHECK(slurm.master_addr == "gpu007");
  CHECK(slurm.master_port >= 20000);
  env.set("SLURM_STEP_NODELIST", "alone");
  CHECK(job_from_environment().master_addr == "alone");
  env.set("SLURM_STEP_NODELIST", "a,b[1-2]");
  CHECK(job_from_environment().master_addr == "a");
  env.set("SLURM_STEP_NODELIST", "b[1-2]");
  CHECK(job_from_environment().master_addr == "b1");
  env.set("SLURM_STEP_ID", "4");
  CHECK(job_from_environment().master_port != slurm.master_port);
  env.set("SLURM_STEP_TASKS_PER_NODE", "4(x3),2"), env.set("SLURM_NODEID", "2");
  CHECK(job_from_environment().local_size == 4);
  env.set("SLURM_NODEID", "3");
  CHECK(job_from_environment().local_size == 2);
}

TEST_CASE("jobs of Open MPI have different ports") {
  Environment env;
  env.set("OMPI_COMM_WORLD_RANK", "1"), env.set("OMPI_COMM_WORLD_SIZE", "2");
  CHECK(job_from_environment().rank == 1);
  env.set("PMIX_NAMESPACE", "a");
  const uint16_t port = job_from_environment().master_port;
  env.set("PMIX_NAMESPACE", "b");
  CHECK(job_from_environment().master_port != port);
}

TEST_CASE("a process takes the rank of the launcher that started it, not of those around it") {
  using Variables = std::map<const char*, const char*>;
  const Variables torchrun{{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
  const Variables hydra{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}};
  const Variables batch{{"SLURM_PROCID", "0"},
                        {"SLURM_NTASKS", "8"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_JOB_NODELIST", "n[1-2]"},
                        {"SLURM_STEP_NODELIST", "n1"}};
  const Variables batch_step{{"SLURM_STEP_NUM_TASKS", "1"}};
  const Variables step{
      {"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_STEP_NODELIST", "n[3-4]"}};
  const Variables pmi_of_step{{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}};
  struct Row {
    const char* where;
    std::vector<Variables> set;
    int rank, size;
    const char* master = "localhost";
  };
  for (const Row& row : std::vector<Row>{
           {.where = "a batch script", .set = {batch}, .rank = 0, .size = 1},
           {.where = "a batch script whose step has a size",
           .set = {batch, batch_step},
           .rank = 0,
           .size = 1,
           .master = "n1"},
           {.where = "mpirun in a batch script", .set = {batch, open_mpi}, .rank = 2, .size = 3},
           {.where = "mpirun in a batch script, step with a size",
           .set = {batch, batch_step, open_mpi},
           .rank = 2,
           .size = 3},
           {.where = "hydra in a batch script", .set = {batch, hydra}, .rank = 3, .size = 4},
           {.where = "hydra by srun", .set = {step, hydra}, .rank = 3, .size = 4},
           {.where = "srun in a batch script",
           .set = {batch, step},
           .rank = 5,
           .size = 6,
           .master = "n3"},
           {.where = "srun with PMI",
           .set = {step, pmi_of_step},
           .rank = 5,
           .size = 6,
           .master = "n3"},
           {.where = "torchrun by srun", .set = {step, torchrun}, .rank = 1, .size = 2},
           {.where = "torchrun under mpirun", .set = {open_mpi, torchrun}, .rank = 1, .size = 2}}) {
    INFO(row.where);
    Environment env;
    for (const Variables& variables : row.set)
      for (const auto& [name, value] : variables) env.set(name, value);
    const Job job = job_from_environment();
    CHECK(job.rank == row.rank);
    CHECK(job.size == row.size);
    CHECK(job.master_addr == row.master);
  }
}

TEST_CASE("mpirun over several hosts of an allocation meets at its first host") {
  Environment env;
  env.set("OMPI_COMM_WORLD_RANK", "1"), env.set("OMPI_COMM_WORLD_SIZE", "4");
  env.set("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), env.set("SLURM_JOB_NODELIST", "n[1-2]");
  CHECK(job_from_environment().master_addr == "n1");
}

TEST_CASE("a command for one process does not wait for ranks that were never started") {
  Environment env;
  env.set("RANK", "0"), env.set("WORLD_SIZE", "2");
  CHECK(job_from_environment().size == 2);
  CHECK(started_job_from_environment().size == 1);
  env.set("MTRAIN_JOB_ID", "host-1-2");
  CHECK(started_job_from_environment().size == 2);
  Environment torchrun;
  torchrun.set("RANK", "0"), torchrun.set("WORLD_SIZE", "2"),
      torchrun.set("TORCHELASTIC_RUN_ID", "none");
  CHECK(started_job_from_environment().size == 2);
  Environment mpi;
  mpi.set("OMPI_COMM_WORLD_RANK", "0"), mpi.set("OMPI_COMM_WORLD_SIZE", "2");
  CHECK(started_job_from_environment().size == 2);
}

TEST_CASE("a variable that is not a number, or out of range, is named") {
  for (const auto& [name, value] : {std::pair{"WORLD_SIZE", "many"},
                                    {"WORLD_SIZE", "0"},
                                    {"RANK", "8"},
                                    {"RANK", "-1"},
                                    {"MASTER_PORT", "70000"}}) {
    Environment env;
    env.set("RANK", "0"), env.set("WORLD_SIZE", "8");
    env.set(name, value);
    try {
      job_from_environment();
      FAIL("no error");
    } catch (const UserError& e) {
      CHECK(e.message().find(name) != std::string::npos);
    }
  }
}

TEST_CASE("an error file says who failed and why, and keeps the first error") {
  Environment env;
  const TemporaryFolder folder;
  const std::string path = (folder / "error.json").string();
  CHECK_FALSE(read_error_file(path));
  write_error_file(CommError("nobody reads this"));  // no launcher
  env.set("MTRAIN_ERROR_FILE", path.c_str());
  env.set("RANK", "3");
  write_error_file(CommError("a peer is \xff gone", "look there"), {"matmul", "all_reduce"});
  write_error_file(RunError("later"));
  const auto e = read_error_file(path);
  REQUIRE(e);
  CHECK(e->rank == 3);
  CHECK(e->kind == ErrorKind::comm);
  CHECK(e->message.find("a peer is") == 0);
  CHECK(e->hint == "look there");
  CHECK(e->launches == std::vector<std::string>{"matmul", "all_reduce"});
  CHECK(e->time > 1.7e9);
}

}  // namespace launch_job_test
