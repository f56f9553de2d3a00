#include <set>
#include <unordered_map>

#include "base/error.h"
#include "parallel/data/grad_sync.h"

namespace mtrain::parallel {

namespace {

class BucketedGrads : public GradSync {
 public:
  BucketedGrads(model::ParamStore& params, const DataGroups& groups,
                const plan::ReduceOptions& reduce, int64_t bucket_size, bool overlap)
      : groups_(groups), reduce_(groups, reduce), overlap_(overlap) {
    const auto units = params.units();
    std::unordered_map<const UnitGroups*, size_t> open;  // the bucket that is being filled
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      const UnitGroups* const of_unit = &groups_.of(**unit);
      for (auto piece = (*unit)->pieces.rbegin(); piece != (*unit)->pieces.rend(); ++piece) {
        if (piece->frozen) continue;
        const auto at = open.find(of_unit);
        if (at == open.end() || buckets_[at->second].elements >= bucket_size ||
            buckets_[at->second].stage != (*unit)->stage) {
          open[of_unit] = buckets_.size();
          buckets_.push_back({.stage = (*unit)->stage});
        }
        Bucket& b = buckets_[open[of_unit]];
        b.pieces.push_back({*unit, &*piece});
        b.elements += piece->count;
        b.parameters += int64_t(piece->params.size());
        for (const model::Parameter* p : piece->params) bucket_of_[p] = open[of_unit];
      }
    }
  }

  void begin_step(int64_t micro_batches) override {
    for (Bucket& b : buckets_)
      b.missing = skipped_.contains(b.stage) ? 0 : b.parameters * micro_batches;
  }
  void skip_stages(const std::set<int64_t>& stages) override { skipped_ = stages; }

  void ready(model::Parameter& p) override {
    Bucket& b = buckets_[bucket_of_.at(&p)];
    MT_CHECK(b.missing > 0, "the gradient of {} is ready too often", p.name);
    if (--b.missing == 0 && overlap_) reduce(b);
  }

  void finish() override {
    for (const Bucket& b : buckets_) {
      MT_CHECK(b.missing == 0, "{} gradients of a bucket did not become ready", b.missing);
      if (!overlap_) reduce(b);
    }
  }

 private:
  struct Bucket {
    int64_t stage;  // the pipeline's stage, whose backward fills the bucket
    std::vector<std::pair<model::ParamUnit*, const model::Piece*>> pieces{};
    int64_t elements = 0;
    int64_t parameters = 0;
    int64_t missing = 0;  // parameters times micro-batches whose gradients are not complete yet
  };

  void reduce(const Bucket& b) const {
    // edge: last weight gradient of this bucket -> its reduction
    groups_.grad_stream->wait(groups_.compute->record());
    for (const auto& [unit, piece] : b.pieces) {
      const Tensor whole = unit->full(unit->grad, *piece);
      if (unit->sharding.ranks == 1)
        reduce_.all_reduce(*unit, whole);
      else
        reduce_.reduce_scatter(*unit, whole, unit->shard_in_full(unit->grad, *piece), false);
    }
  }

  const DataGroups& groups_;
  const GradReduce reduce_;
  const bool overlap_;
  std::vector<Bucket> buckets_;
  std::set<int64_t> skipped_;  // stages
  std::unordered_map<const model::Parameter*, size_t> bucket_of_;
};

}  // namespace

std::unique_ptr<GradSync> bucketed_grads(model::ParamStore& params, const DataGroups& groups,
                                         const plan::ReduceOptions& reduce, int64_t bucket_size,
                                         bool overlap) {
  return std::make_unique<BucketedGrads>(params, groups, reduce, bucket_size, overlap);
}

}  // namespace mtrain::parallel
