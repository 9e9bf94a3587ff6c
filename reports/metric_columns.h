// Filling the columns of metrics.h from the rows.
#pragma once

#include <cstddef>
#include <string>

#include "reports/metrics.h"

namespace tpjitter {

// Fills columns with the values of one rank's rows.
class ColumnFiller {
 public:
  ColumnFiller(const Run& run, const ReplayTable& table, const Floors& floors)
      : run_(run), table_(table), floors_(floors) {}

  // Slots [begin, end); the value of slot `origin` is a column's first.
  MetricEvidence fill(std::size_t rank, std::size_t begin, std::size_t end, std::size_t origin,
                      MetricColumns* columns) const;

 private:
  const PhaseRow* next_step(std::size_t rank, std::size_t slot) const;

  const Run& run_;
  const ReplayTable& table_;
  const Floors& floors_;
};

void resize_columns(std::size_t size, MetricColumns* columns);
// Those that a case has.
void resize_maxima(std::size_t size, MetricColumns* maxima);

// Takes a rank's columns into the maxima over those before, slots [begin, end) of both. A rank
// without the value leaves the maximum unknown.
void add_to_maxima(std::size_t rank, const MetricColumns& columns, std::size_t begin,
                   std::size_t end, MetricColumns* maxima);

// Why a metric has no value.
std::string absence_reason(const Metric& metric, const MetricEvidence& evidence,
                           std::size_t world_size);

}  // namespace tpjitter
