// Asynchronous work of one thread in groups, as cp.async and wgmma have: committed, and waited for in order.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace simt {

template <class Work>
class Groups {
  public:
    void add(Work work) { open_.emplace_back(committed_, std::move(work)); }
    void commit() { ++committed_; }
    size_t committed() const { return committed_; }
    void clear() { open_.clear(), committed_ = 0; }
    bool empty() const { return open_.empty(); }
    Work& newest() { return open_.back().second; }

    // Performs the work of all groups but the `open` newest, and forgets it; with `all`, uncommitted work too.
    template <class Perform>
    void finish(size_t open, Perform perform, bool all = false) {
        size_t done = 0;
        for (; done < open_.size() && (all || open_[done].first + open < committed_); ++done) perform(open_[done].second);
        open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(done));
    }

  private:
    std::vector<std::pair<size_t, Work>> open_;  // with the number of its group
    size_t committed_ = 0;
};

}  // namespace simt
