#include "tests/reliability/trace.hpp"

#include <algorithm>
#include <functional>
#include <sstream>

#include "lib/base/file.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

std::vector<IoCall> read_trace(const fs::path& file) {
  const std::string text = read_file(file);
  std::vector<IoCall> calls;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    std::istringstream line(text.substr(at, end - at));
    IoCall call;
    std::string bytes;
    std::getline(line, call.call, '\t');
    std::getline(line, call.path, '\t');
    std::getline(line, call.second, '\t');
    std::getline(line, bytes, '\t');
    call.data = text.substr(end + 1, std::stoull(bytes));
    at = end + 1 + call.data.size();
    calls.push_back(std::move(call));
  }
  return calls;
}

namespace {

// A change that is on its way to the disk.
struct Change {
  std::size_t at = 0;        // number of the call
  int node = 0;              // file that is written, or directory whose names change
  std::uint64_t offset = 0;  // of a write
  const std::string* data = nullptr;
  std::string removed, added;  // names; of a rename both
  int target = -1;             // node of the added name
};

}  // namespace

PowerLoss::PowerLoss(const fs::path& root) : root_(root) {
  const std::function<int(const fs::path&)> add = [&](const fs::path& path) {
    const int self = static_cast<int>(nodes_.size());
    nodes_.push_back({.is_directory = fs::is_directory(path)});
    if (!fs::is_directory(path)) {
      nodes_.back().data = std::make_shared<std::string>(read_file(path));
      return self;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      const int child = add(entry.path());
      nodes_[static_cast<std::size_t>(self)].names[entry.path().filename()] = child;
    }
    return self;
  };
  add(root);
}

namespace {

/// What every call did, by node and not by path, as the running program saw it.
class Replay {
 public:
  explicit Replay(const std::vector<DiskState::Node>& nodes) {
    for (const DiskState::Node& node : nodes) {
      live_.push_back({node.is_directory, node.data ? node.data->size() : 0, node.names});
    }
  }

  void apply(const IoCall& call, const fs::path& root, std::size_t number) {
    const fs::path path = fs::path(call.path).lexically_relative(root);
    const bool is_root = path == ".";
    const int directory = is_root ? 0 : find(path.parent_path());
    const std::string name = path.filename();
    if (call.call == "fsync") {
      durable_[is_root ? 0 : find(path)] = number;
    } else if (call.call == "write") {
      const int file = find(path);
      changes.push_back({number, file, live(file).bytes, &call.data, "", "", -1});
      live(file).bytes += call.data.size();
    } else if (call.call == "open" || call.call == "mkdir") {
      if (live(directory).names.contains(name)) return;
      const int made = static_cast<int>(live_.size());
      live_.push_back({call.call == "mkdir", 0, {}});
      change_names(number, directory, "", name, made);
    } else if (call.call == "unlink") {
      if (live(directory).names.contains(name)) change_names(number, directory, name, "", -1);
    } else if (call.call == "rename" || call.call == "link") {
      const fs::path to = fs::path(call.second).lexically_relative(root);
      require(to.parent_path() == path.parent_path(), "{} to another directory", call.path);
      const int moved = live(directory).names.at(name);
      change_names(number, directory, call.call == "rename" ? name : "", to.filename(), moved);
    }
  }

  bool is_directory(int node) const { return live_[static_cast<std::size_t>(node)].is_directory; }
  std::size_t num_nodes() const { return live_.size(); }
  /// Whether the node was synced after the change.
  bool is_durable(const Change& change) const {
    const auto at = durable_.find(change.node);
    return at != durable_.end() && at->second > change.at;
  }

  std::vector<Change> changes;

 private:
  struct Live {
    bool is_directory = false;
    std::uint64_t bytes = 0;
    std::map<std::string, int> names;
  };
  Live& live(int node) { return live_[static_cast<std::size_t>(node)]; }
  int find(const fs::path& path) {
    int node = 0;
    for (const fs::path& part : path) node = live(node).names.at(part);
    return node;
  }
  void change_names(std::size_t number, int directory, const std::string& removed,
                    const std::string& added, int target) {
    if (!removed.empty()) live(directory).names.erase(removed);
    if (!added.empty()) live(directory).names[added] = target;
    changes.push_back({number, directory, 0, nullptr, removed, added, target});
  }

  std::vector<Live> live_;
  std::map<int, std::size_t> durable_;  // number of the last fsync
};

}  // namespace

DiskState PowerLoss::state(const std::vector<IoCall>& trace, std::size_t calls,
                           std::uint64_t seed) const {
  Replay replay(nodes_);
  for (std::size_t i = 0; i < calls; ++i) replay.apply(trace[i], root_, i + 1);
  std::vector<DiskState::Node> nodes = nodes_;
  for (std::size_t i = nodes.size(); i < replay.num_nodes(); ++i) {
    nodes.push_back({.is_directory = replay.is_directory(static_cast<int>(i))});
  }
  std::map<int, std::string> written;
  const PhiloxKey key = philox_key(seed, "test", "power");
  for (const Change& change : replay.changes) {
    const std::uint32_t chance = philox_word(key, calls, change.at);
    const bool durable = replay.is_durable(change);
    if (!durable && (seed == 1 || (seed > 1 && chance % 4 == 0))) continue;
    DiskState::Node& node = nodes[static_cast<std::size_t>(change.node)];
    if (change.data == nullptr) {
      if (!change.removed.empty()) node.names.erase(change.removed);
      if (!change.added.empty()) node.names[change.added] = change.target;
      continue;
    }
    std::string_view bytes = *change.data;
    if (!durable && seed > 1 && chance % 4 == 1) bytes = bytes.substr(0, 512);
    if (!durable && seed > 1 && chance % 8 == 2) bytes = bytes.substr(0, 4096);
    std::string& data = written.try_emplace(change.node, node.data ? *node.data : "").first->second;
    data.resize(std::max<std::size_t>(data.size(), change.offset + bytes.size()));
    data.replace(change.offset, bytes.size(), bytes);
  }
  for (auto& [node, data] : written) {
    nodes[static_cast<std::size_t>(node)].data = std::make_shared<std::string>(std::move(data));
  }
  return DiskState(std::move(nodes));
}

std::string DiskState::digest(int node) const {
  const Node& self = nodes_[static_cast<std::size_t>(node)];
  if (!self.is_directory) return to_hex(hash128(self.data ? *self.data : ""));
  std::string names;
  for (const auto& [name, child] : self.names) names += name + '/' + digest(child) + '/';
  return to_hex(hash128(names));
}

void DiskState::write(int node, const fs::path& target) const {
  const Node& self = nodes_[static_cast<std::size_t>(node)];
  if (!self.is_directory) {
    File file = File::create_new(target);
    if (self.data) file.write(*self.data);
    return;
  }
  fs::create_directory(target);
  for (const auto& [name, child] : self.names) write(child, target / name);
}

}  // namespace llmtrain::test
