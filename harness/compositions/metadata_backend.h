// The one interface of attention metadata, the same on both devices: what a serving engine calls an
// attention backend, reduced to the hooks that capture and replay need. Leaves keep the tables of
// one form and are made by the device's side; compositions combine leaves, know no device, and
// forward every hook. A hook that one of them forgets leaves a stale table behind a replay, which
// is why nobody calls a leaf but through them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tpjitter {

// Rows of the batch in one phase of a step.
struct BatchView {
  int phase = 0;                 // ordinal in the step plan
  std::int32_t first_row = 0;    // of the padded batch
  std::int32_t batch_size = 0;   // rows, padded ones included; what metadata is bound by
  std::int32_t num_padding = 0;  // of them, the last ones

  bool operator==(const BatchView&) const = default;
};

// The form of a leaf's tables.
enum class LeafKind {
  kPaged,        // Pattern A: page tables, built into persistent buffers that the graph reads
  kKvIndices,    // Pattern B: kv_indptr and kv_indices, token granular
  kLinearState,  // state slots of linear attention
  kTopk,         // draft trees: a prefix object and an expand object
};

struct LeafId {
  LeafKind kind = LeafKind::kPaged;
  int instance = 0;  // tables of its own: 0, and 1 and 2 of two children

  bool operator==(const LeafId&) const = default;
};

// A leaf's tables of these rows.
struct TableRows {
  LeafId leaf;
  BatchView view;

  bool operator==(const TableRows&) const = default;
};

// Layers of a forward, one after the other, that read the same tables.
struct LayerRun {
  TableRows tables;
  // Two-batch overlap: each layer reads these two in place of `tables`, whose view still says which
  // rows the forward has. Rows of an empty half: 0.
  std::vector<TableRows> halves;
  int layers = 1;
};

class MetadataBackend {
 public:
  virtual ~MetadataBackend() = default;

  // Once for each batch size, before its graph is recorded: binds the size's metadata to the
  // persistent buffers, and fills it as before a replay.
  virtual void capture(const BatchView& view) = 0;
  // Host side, before each replay. Throws RunError for a batch size that was never captured.
  virtual void out_graph(const BatchView& view) = 0;
  // Recorded ahead of the forwards; must not wait for the device.
  virtual void in_graph(const BatchView& view) = 0;
  // Which tables a forward of `layers` layers reads, in the order of its layers.
  virtual void append_layers(const BatchView& view, int layers,
                             std::vector<LayerRun>& runs) const = 0;
};

// The device's side: makes leaves, each with buffers of its own.
class LeafSource {
 public:
  virtual ~LeafSource() = default;
  virtual std::unique_ptr<MetadataBackend> make(const LeafId& id) = 0;
};

}  // namespace tpjitter
