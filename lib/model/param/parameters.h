// Parameters in flat buffers, one for each unit. A unit (the embedding, one block, the head) is
// what data parallelism gathers and shards as a whole; a piece of it is what is reduced at once.
//
// Words: the layout-free tensor is a parameter as a single rank has it, which checkpoints save.
// Tensor parallelism gives a rank some rows or columns of it, and padding; its real elements are
// those that are not padding. Data parallelism lets a rank own a part of each unit, which its
// optimizer updates.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor_role.h"
#include "model/param/shard_spec.h"
#include "spec/tensors.h"
#include "tensor/tensor.h"

namespace mtrain::model {

// Which unit of the parameters is meant. Units are chosen by kind and layer; names are for people.
enum class UnitKind : uint8_t {
  embedding,  // the token table first, and the learned positions
  positions,  // the learned positions, if the token table has a unit of its own
  layer,
  experts,  // the experts of a layer, which other ranks may hold than the layer
  output,   // final norm and output layer
};
struct UnitId {
  // Converts implicitly: a kind other than `layer` and `experts` has one unit.
  constexpr UnitId(UnitKind unit_kind, int64_t unit_layer = -1)
      : kind(unit_kind), layer(unit_layer) {}
  bool operator==(const UnitId&) const = default;

  UnitKind kind;
  int64_t layer;  // layer of the model, from 0; -1 for the other kinds
};
std::string unit_name(UnitId id);  // "layers.3", "embedding"

using spec::Init;

struct ParamSpec {
  std::string name;  // the same under every layout: "layers.3.attention.qkv.weight"
  Shape shape;       // shape of this rank's tensor, padding included
  Init init = Init::normal;
  // Standard deviation under Init::normal; the largest magnitude under Init::uniform.
  float std = 0.02f;
  TensorRole role = TensorRole::matrix;
  // Rows of the layout-free tensor. A rank's rows beyond them are padding and stay zero. -1:
  // nothing is padded.
  int64_t rows = -1;
  // Whether a GEMM computes the gradient. The first GEMM of a step then overwrites the gradient of
  // the step before (Parameter::fresh).
  bool matmul_grad = true;
  // Whether its GEMMs read it in 8 bits, in a form in which it can be gathered.
  bool quantized = false;
  // Rows of each of the weights that are stacked in a matrix of the layout-free tensor, such as q,
  // k and v. Empty: the matrix is one weight.
  std::vector<int64_t> stacked = {};
  ShardSpec shard = {};
  ExpertShard experts = {};  // `shard` spreads the part of one of its ranks
  // Another rank of the pipeline has the same parameter; that rank saves it, and counts it in the
  // gradient norm.
  bool copy = false;
  // Training does not change it: it has no gradient, no master weight and no moments.
  bool frozen = false;
  bool adapter = false;  // A or B of an adapter, which the weights of a base model lack

  // Whether weight decay applies unless the recipe says otherwise.
  bool decays() const { return role == TensorRole::matrix || role == TensorRole::table; }

  // A tensor of three dimensions is a matrix for each index of the first one. Rows are those of all
  // its matrices, one after the other; `shard` divides each matrix alike.
  int64_t matrices() const { return shape.rank() == 3 ? shape[0] : 1; }
  int row_dim() const { return shape.rank() == 3 ? 1 : 0; }
  int64_t columns() const { return shape.rank() == 1 ? 1 : shape[shape.rank() - 1]; }
  Shape full_shape() const;  // the shape of the layout-free tensor
  // Returns the shape of the part that the ranks of `shard` have together: this rank's experts of
  // the layout-free tensor, or all of it.
  Shape part_shape() const;
  std::vector<RowShard> rows_here() const;       // this rank's real rows of the part
  std::vector<ElementRun> runs(int rank) const;  // the real elements of any rank of `shard`
  std::vector<ElementRun> runs() const { return runs(shard.rank); }  // those of this rank
  // Returns the real elements that any rank of `shard` has of the first matrix.
  std::vector<ElementRun> matrix_runs(int rank) const;
  // Returns the index in the layout-free tensor of element `here` of this rank's tensor.
  int64_t full_index(int64_t here) const;
};

// Returns the sections of a tensor's rows.
std::vector<ShardSpec::Section> sections_of(const spec::TensorSpec& tensor);
// Returns a rank's part of a tensor of the model. `shard` may have more rows than a padded tensor.
ParamSpec part_of(const spec::TensorSpec& tensor, ShardSpec shard = {}, ExpertShard experts = {});

struct ParamUnit;

struct Parameter : ParamSpec {
  ParamUnit* unit = nullptr;
  int64_t begin = 0;           // its first element in the unit
  DType compute = DType::f32;  // the type in which forward and backward compute
  // What forward and backward read, in the compute dtype. Absent while sharded, and if the full
  // values exist in 8 bits alone.
  Tensor value;
  // The same in 8 bits, for a weight that is gathered in 8 bits. Its quantizer has the scales.
  Tensor quantized_value;
  // Master weight, fp32. It is the memory of `value` if that is fp32, and absent if masters are
  // sharded or bf16 values are trained without them.
  Tensor master;
  Tensor grad;  // fp32 main gradient; absent while sharded
  // Nothing was added since zero_grads(): the first GEMM overwrites the gradient, so that nothing
  // needs to clear it.
  bool fresh = false;
  // Whether this contribution must overwrite the gradient. True once per step for a GEMM's
  // gradient.
  bool consume_first_write() {
    const bool was = fresh;
    fresh = false;
    return was;
  }
  int64_t real_rows() const;  // this rank's rows before its padding
  int64_t real_count() const { return columns() * real_rows(); }
};

// What a rank keeps of the parameters. Each of `ranks` owns an equal part of every piece: it
// updates that part, and keeps master weights and moments of no other.
struct Sharding {
  int ranks = 1, rank = 0;
  bool values = false, grads = false;  // whether it also keeps only its part of values, gradients
  // Elements that a piece has at least. Units are split between parameters, never within one.
  int64_t piece = std::numeric_limits<int64_t>::max();
  bool in_norm = true;  // in the gradient norm; else another rank has the same and counts it
  // The weights that GEMMs read in 8 bits are gathered in this type. Their full values exist in no
  // other. Absent: full values have the compute dtype.
  std::optional<DType> quantized = std::nullopt;
};

// Neighbouring parameters of a unit. Frozen pieces follow the others. Parameters that decay come
// first, so that the optimizer sees at most two ranges. If the unit is sharded, a piece has only
// weights that GEMMs read in 8 bits, or none of them.
struct Piece {
  int64_t begin = 0, count = 0;  // elements in the unit; every rank owns count / ranks of them
  int64_t decay_end = 0;  // elements of the unit in [begin, decay_end) decay, the rest do not
  bool frozen = false;    // all of its parameters are, or none
  std::vector<Parameter*> params;
};

// A range of a unit that this rank's optimizer updates.
struct OwnedRange {
  int64_t begin, count;  // elements in the unit
  Tensor master;         // fp32; absent if bf16 values are trained without master weights
  Tensor grad;           // absent if the parameters are frozen
  Tensor value;          // in the compute dtype; absent if that is fp32: the master weights compute

  const Tensor& weights() const { return master ? master : value; }  // what the optimizer updates
};

struct ParamUnit {
  UnitId id;
  std::string name;   // unit_name(id)
  int64_t stage = 0;  // the pipeline's stage that declared it
  // Keeps the values in fp32, and reduces their gradients in fp32, whatever the compute dtype is.
  bool in_fp32 = false;
  std::vector<Parameter*> params;  // in the order of declaration, which is the order of forward
  std::vector<Piece> pieces;
  int64_t count = 0;          // elements, padding included
  int64_t trained_count = 0;  // the elements before the frozen pieces; gradients have no others
  // The first element of the weights that GEMMs read in 8 bits, which follow all others if the unit
  // is sharded; `count` if there are none.
  int64_t quantized_begin = 0;
  Sharding sharding;
  std::vector<OwnedRange> owned;
  // Flat tensors of the whole unit; absent while sharded. `grad` has trained_count elements. If
  // weights are gathered in 8 bits, `value` has the elements before quantized_begin, and
  // quantized_value the others.
  Tensor value, grad, quantized_value;
  // Flat tensors of the part that this rank owns, piece after piece. own_value and own_grad are
  // absent if the tensors above hold that part. own_master is absent if values are fp32, which are
  // their own masters, and if bf16 values are trained without masters. Frozen elements, which are
  // the last, have a value alone.
  Tensor own_value, own_master, own_grad;
  // This rank's part of quantized_value.
  Tensor own_quantized;

  int64_t own_count() const { return count / sharding.ranks; }
  // Elements whose full values are in the compute dtype, and in 8 bits.
  int64_t plain_count() const { return sharding.quantized ? quantized_begin : count; }
  int64_t quantized_count() const { return count - plain_count(); }
  bool gathered_in_8_bits(const Piece& p) const { return p.begin >= plain_count(); }
  // full: a piece of `t`, a tensor of the whole unit. shard_in_full: this rank's part of that
  // piece. local_shard: the same part, of a tensor `t` that holds only what this rank owns.
  Tensor full(const Tensor& t, const Piece& p) const { return t.flat(p.begin, {p.count}); }
  Tensor shard_in_full(const Tensor& t, const Piece& p) const;
  Tensor local_shard(const Tensor& t, const Piece& p) const;
  // The same two for tensors that begin with the element plain_count(), and for this rank's part of
  // them.
  Tensor full_quantized(const Tensor& t, const Piece& p) const;
  Tensor local_quantized(const Tensor& t, const Piece& p) const;
};

class ParamStore {
 public:
  // Units that begin from here on belong to this stage of the pipeline. A rank's stages declare
  // their parameters one after the other.
  void begin_stage(int64_t stage) { stage_ = stage; }
  // Declares a parameter of `unit`; units keep the order of their first parameter. The pointer
  // stays valid.
  Parameter* add(UnitId unit, ParamSpec spec);
  // Allocates what `sharding` lets this rank keep. `compute` is fp32, bf16 or fp16. Gradients and
  // master weights exist only if `training`, master weights of 16-bit values only if `masters`.
  void materialize(Stream& stream, DType compute, bool training, const Sharding& sharding = {},
                   bool masters = true);
  // Returns memory for full values of a unit, which ranks gather; absent: ordinary memory.
  using ValueMemory = std::function<Tensor(const ParamUnit& unit, int64_t count, DType dtype)>;
  // The same with a sharding for each unit.
  void materialize_by_unit(Stream& stream, DType compute, bool training,
                           const std::function<Sharding(const ParamUnit&)>& sharding, bool masters,
                           const ValueMemory& memory = {});
  // Finds where every unit, piece and parameter begins, and what this rank owns, without memory for
  // any of it.
  void lay_out(const std::function<Sharding(const ParamUnit&)>& sharding);
  // Writes the initial weights that this rank owns. Every element is a function of (seed, name, its
  // index in the layout-free tensor).
  void initialize(Stream& stream, uint64_t seed);
  // Writes the weights that this rank owns of `p`. `values` are those of the layout-free tensor.
  // ParamUploader does the same for values that are not in memory.
  static void set_master(Stream& stream, const Parameter& p, const std::vector<float>& values);
  // Clear the gradients of all units that have memory for them, of one unit, or of one parameter. A
  // gradient that a GEMM computes is only marked as fresh, and the GEMM overwrites it.
  void zero_grads(Stream& stream);
  void zero_grads(Stream& stream, ParamUnit& unit);
  static void zero_grad(Stream& stream, Parameter& p);

  // Make the unit's parameters views of these flat tensors; absent ones if they are absent.
  // `quantized` has the weights that are gathered in 8 bits, and `value` has the others.
  static void set_value(ParamUnit& unit, const Tensor& value, const Tensor& quantized = {});
  static void set_grad(ParamUnit& unit, const Tensor& grad);

  std::vector<ParamUnit*> units();
  ParamUnit* unit(UnitId id);  // null if this rank has no such unit
  std::vector<Parameter*> params();
  Parameter* find(const std::string& name);  // null if this rank has no such parameter

 private:
  std::deque<Parameter> params_;
  std::deque<ParamUnit> units_;
  int64_t stage_ = 0;
};

// Returns where a kernel adds the gradient of a vector: memory that nobody reads if it is frozen.
Tensor vector_grad(Stream& stream, const Parameter& p);

// The part of a parameter's real elements that lies in an owned range.
struct OwnedPart {
  const OwnedRange* range;
  int64_t in_param, in_range;  // its first element in the parameter and in the range
  int64_t count;
};
std::vector<OwnedPart> owned_parts(const Parameter& p);

// The owned gradients of all units: those that count in the gradient norm, and the copies of them
// that another rank counts.
struct NormGrads {
  std::vector<Tensor> counted, copies;
};
NormGrads norm_grads(ParamStore& params);

}  // namespace mtrain::model
