#include "parallel/ddp.h"

#include <map>

#include "base/error.h"

namespace mtrain {

namespace {

class Ddp : public DataParallel {
 public:
  Ddp(ParamStore& params, const Group& group, const DdpOptions& options, Stream& compute,
      Stream& dp)
      : group_(group), options_(options), compute_(compute), dp_(dp) {
    const auto units = params.units();
    for (size_t i = units.size(); i-- > 0;) {
      if (buckets_.empty() || buckets_.back().parameters >= options.bucket_size)
        buckets_.emplace_back();
      Bucket& b = buckets_.back();
      b.units.push_back(units[i]);
      b.parameters += units[i]->grad.count();
      b.expected += units[i]->params.size();
      for (const Parameter* p : units[i]->params) bucket_of_[p] = buckets_.size() - 1;
    }
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void begin_backward(bool last_micro_batch) override {
    last_ = last_micro_batch;
    for (Bucket& b : buckets_) b.missing = b.expected;
  }

  void grad_ready(Parameter& p) override {
    if (!last_) return;
    Bucket& b = buckets_[bucket_of_.at(&p)];
    MT_CHECK(b.missing > 0, "{} is ready twice", p.name);
    if (--b.missing == 0 && options_.overlap) reduce(b);
  }

  void finish_grads() override {
    for (Bucket& b : buckets_) {
      MT_CHECK(b.missing == 0, "{} gradients of a bucket never became ready", b.missing);
      if (!options_.overlap) reduce(b);
    }
    compute_.wait(dp_.record());  // edge: last reduction -> norm and optimizer
  }

  void sum(const Tensor& values) override {
    dp_.wait(compute_.record());  // edge: values -> their sum
    group_.all_reduce(values, Reduce::sum, dp_);
    compute_.wait(dp_.record());
  }

  std::vector<int64_t> sum_on_host(std::vector<int64_t> values) override {
    const auto n = int64_t(values.size());
    const Tensor t = Tensor::from_host(dp_, {n}, std::move(values));
    group_.all_reduce(t, Reduce::sum, dp_);
    return t.to_host<int64_t>(dp_);
  }

 private:
  struct Bucket {
    std::vector<ParamUnit*> units;
    int64_t parameters = 0;
    size_t expected = 0, missing = 0;  // parameters whose gradient is awaited
  };

  void reduce(const Bucket& b) {
    dp_.wait(compute_.record());  // edge: last weight gradient of this bucket -> its reduction
    for (const ParamUnit* u : b.units) group_.all_reduce(u->grad, Reduce::sum, dp_);
  }

  Group group_;
  DdpOptions options_;
  Stream &compute_, &dp_;
  std::vector<Bucket> buckets_;
  std::map<const Parameter*, size_t> bucket_of_;
  bool last_ = false;
};

class SingleRank : public DataParallel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void begin_backward(bool) override {}
  void grad_ready(Parameter&) override {}
  void finish_grads() override {}
  void sum(const Tensor&) override {}
  std::vector<int64_t> sum_on_host(std::vector<int64_t> values) override { return values; }
};

}  // namespace

std::unique_ptr<DataParallel> replicated_data_parallel(ParamStore& params, const Group& group,
                                                       const DdpOptions& options, Stream& compute,
                                                       Stream& dp) {
  return std::make_unique<Ddp>(params, group, options, compute, dp);
}

std::unique_ptr<DataParallel> single_rank() { return std::make_unique<SingleRank>(); }

}  // namespace mtrain
