// Parameters in flat per-unit buffers. A unit (the embedding, one block, the head) is what data
// parallelism gathers and shards as a whole; its pieces are what is reduced at once.
#pragma once
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "model/param/shard_spec.h"
#include "tensor/tensor.h"

namespace mtrain::model {

// Which unit of the parameters is meant. Units are chosen by kind and layer; names are for people.
enum class UnitKind : uint8_t {
  embedding,  // the token table first, and the learned positions
  positions,  // the learned positions, where the token table has a unit of its own
  layer,
  output,  // final norm and output layer
};
struct UnitId {
  // Converts implicitly: a kind other than `layer` has one unit.
  constexpr UnitId(UnitKind unit_kind, int64_t unit_layer = -1)
      : kind(unit_kind), layer(unit_layer) {}
  bool operator==(const UnitId&) const = default;

  UnitKind kind;
  int64_t layer;  // of the model, from 0; -1 for the other kinds
};
std::string unit_name(UnitId id);  // "layers.3", "embedding"

enum class Init { normal, zeros, ones };

struct ParamSpec {
  std::string name;  // global, layout-free: "layers.3.attention.qkv.weight"
  Shape shape;       // of this rank's tensor
  Init init = Init::normal;
  float std = 0.02f;  // of Init::normal
  bool decay = true;
  int64_t rows = -1;  // of the layout-free tensor; what this rank has beyond them is padding and
                      // stays zero. -1: nothing is padded
  bool matmul_grad =
      true;  // the gradient's first contribution of a step overwrites it (see Parameter::fresh)
  ShardSpec shard = {};
  bool copy = false;  // another rank of the pipeline has it, too, counts it and saves it

  int64_t columns() const { return shape.count() / shape[0]; }
  Shape whole_shape() const;                                         // of the layout-free tensor
  std::vector<RowShard> rows_here() const;                           // real ones, of this rank
  std::vector<ElementRun> runs(int rank) const;                      // of any rank of the cut
  std::vector<ElementRun> runs() const { return runs(shard.rank); }  // of this one
  int64_t whole_index(int64_t here) const;  // of an element of this rank's tensor
  // This rank's real elements of the layout-free tensor's, in the order of its own.
  std::vector<float> take_real(const std::vector<float>& whole) const;
};

struct ParamUnit;

struct Parameter : ParamSpec {
  ParamUnit* unit = nullptr;
  int64_t begin = 0;  // of its elements in the unit
  Tensor value;       // in the compute dtype: what forward and backward read; absent while sharded
  Tensor master;  // fp32; the same memory as `value` where that is fp32; absent where sharded, and
                  // where bf16 values are trained without
  Tensor grad;    // fp32 main gradient; absent while sharded
  bool fresh = false;  // no contribution since zero_grads(): the first matmul writes instead of
                       // adding, so that its buffer needs no clearing
  // True once per step for a matmul gradient: this contribution overwrites.
  bool consume_first_write() {
    const bool was = fresh;
    fresh = false;
    return was;
  }
  int64_t real_rows() const;  // of this rank; padding follows them
  int64_t real_count() const { return columns() * real_rows(); }
};

// What a rank keeps of the parameters. Each of `ranks` owns an equal part of every piece: it
// updates that part, and keeps master weights and moments of no other.
struct Sharding {
  int ranks = 1, rank = 0;
  bool values = false, grads = false;  // of these, too, it keeps its own part alone
  // Units are cut into pieces of at least so many parameters, but never within one.
  int64_t piece = std::numeric_limits<int64_t>::max();
};

// Neighbours in a unit. Parameters that decay come first, so that the optimizer sees at most two
// ranges.
struct Piece {
  int64_t begin = 0, count = 0;  // elements in the unit; every rank owns as many
  int64_t decay_end = 0;  // elements of the unit in [begin, decay_end) decay, the rest do not
  std::vector<Parameter*> params;
};

// A range of a unit that this rank's optimizer updates.
struct OwnedRange {
  int64_t begin, count;  // in the unit
  bool decay;
  Tensor master;  // fp32; absent where bf16 values are trained without
  Tensor grad;
  Tensor value;  // in the compute dtype; absent where the master computes

  const Tensor& weights() const { return master ? master : value; }  // what an update starts from
};

struct ParamUnit {
  UnitId id;
  std::string name;                // unit_name(id)
  std::vector<Parameter*> params;  // as they are declared, which is the order of forward
  std::vector<Piece> pieces;
  int64_t count = 0;  // elements, padding included
  Sharding sharding;
  std::vector<OwnedRange> owned;
  Tensor value, grad;  // flat, of the whole unit; absent while sharded
  // Flat, of the owned part alone: piece after piece. Absent where the whole tensor holds it.
  Tensor own_value, own_master, own_grad;

  int64_t own_count() const { return count / sharding.ranks; }
  // A piece within a tensor of the whole unit; this rank's part of it there; and that part within
  // a tensor of what this rank owns.
  Tensor full(const Tensor& t, const Piece& p) const { return t.flat(p.begin, {p.count}); }
  Tensor shard_in_full(const Tensor& t, const Piece& p) const;
  Tensor local_shard(const Tensor& t, const Piece& p) const;
};

class ParamStore {
 public:
  // Declares a parameter of `unit`; units keep the order of their first parameter. The pointer
  // stays valid.
  Parameter* add(UnitId unit, ParamSpec spec);
  // Allocates what `sharding` lets this rank keep; `compute` is fp32 or bf16. Gradients and master
  // weights only where `training`, the latter where `masters`, too.
  void materialize(Stream& stream, DType compute, bool training, const Sharding& sharding = {},
                   bool masters = true);
  // Every element is a function of (seed, name, its index in the layout-free tensor). Writes what
  // this rank owns.
  void initialize(Stream& stream, uint64_t seed);
  // Writes what this rank owns of these values of the layout-free tensor.
  void set_master(Stream& stream, Parameter& p, const std::vector<float>& values);
  void zero_grads(Stream& stream);
  void zero_grads(Stream& stream, ParamUnit& unit);  // whose gradient is there
  static void zero_grad(Stream& stream, Parameter& p);

  // Makes the unit's parameters views of these flat tensors; absent ones of absent tensors.
  static void set_value(ParamUnit& unit, const Tensor& value);
  static void set_grad(ParamUnit& unit, const Tensor& grad);

  std::vector<ParamUnit*> units();
  ParamUnit* unit(UnitId id);  // null where this rank has no such unit
  std::vector<Parameter*> params();
  Parameter* find(const std::string& name);  // null where there is none

 private:
  std::deque<Parameter> params_;
  std::deque<ParamUnit> units_;
};

// The part of a parameter's real elements that lies in an owned range: where in the parameter, and
// where in the range.
struct OwnedPart {
  const OwnedRange* range;
  int64_t in_param, in_range, count;
};
std::vector<OwnedPart> owned_parts(const Parameter& p);

// Owned gradients of all units that count in the gradient norm: without the copies that another
// rank counts.
std::vector<Tensor> counted_grads(ParamStore& params);

}  // namespace mtrain::model
