#include "memory.hpp"

#include <algorithm>

namespace asap::twin {

void GlobalMemory::add(const void* begin, std::uint64_t num_bytes) {
  num_bytes_[reinterpret_cast<std::uintptr_t>(begin)] = num_bytes;
}

void GlobalMemory::check(const void* begin, std::uint64_t num_bytes, const char* user) const {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  auto next = num_bytes_.upper_bound(address);
  if (next != num_bytes_.begin()) {
    const auto& [first, size] = *std::prev(next);
    if (address - first <= size && num_bytes <= size - (address - first)) return;
  }
  throw Fault(std::string(user) + " of " + std::to_string(num_bytes) +
              " bytes outside every allocation");
}

DataCache::Line& DataCache::line_of(std::uintptr_t address, std::size_t num_bytes) {
  const std::uintptr_t begin = address / kLineBytes * kLineBytes;
  if (address % num_bytes != 0) throw Fault("scalar access not aligned to its element");
  const auto [entry, is_new] = lines_.try_emplace(begin);
  if (is_new) {
    memory_.check(reinterpret_cast<const void*>(address), num_bytes, "scalar access");
    std::memcpy(entry->second.bytes.data(), reinterpret_cast<const void*>(begin), kLineBytes);
    entry->second.is_dirty = entry->second.is_written = false;
  }
  return entry->second;
}

void DataCache::read(const void* from, void* to, std::size_t num_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  std::memcpy(to, &line_of(address, num_bytes).bytes[address % kLineBytes], num_bytes);
}

void DataCache::write(void* to, const void* from, std::size_t num_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  Line& line = line_of(address, num_bytes);
  std::memcpy(&line.bytes[address % kLineBytes], from, num_bytes);
  line.is_dirty = line.is_written = true;
  if (random_() % 16 == 0) write_back_some();
}

void DataCache::write_back(std::uintptr_t begin, Line& line) {
  if (line.is_dirty) std::memcpy(reinterpret_cast<void*>(begin), line.bytes.data(), kLineBytes);
  line.is_dirty = false;
}

void DataCache::write_back_some() {
  auto entry = lines_.begin();
  std::advance(entry,
               static_cast<std::ptrdiff_t>(random_() % std::min<std::size_t>(lines_.size(), 32)));
  write_back(entry->first, entry->second);
}

void DataCache::clean_and_invalidate(const void* address) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address) / kLineBytes * kLineBytes;
  const auto entry = lines_.find(begin);
  if (entry == lines_.end()) return;
  is_cleaning_ |= entry->second.is_written;
  write_back(begin, entry->second);
  lines_.erase(entry);
}

void DataCache::clean_and_invalidate_all() {
  for (auto& [begin, line] : lines_) {
    is_cleaning_ |= line.is_written;
    write_back(begin, line);
  }
  lines_.clear();
}

void DataCache::require_clean() const {
  if (is_cleaning_) throw Fault("data cache cleaned, and no DataSyncBarrier awaits it");
  if (std::ranges::any_of(lines_, [](const auto& entry) { return entry.second.is_written; })) {
    throw Fault("dirty data cache at the end of the kernel: a scalar write was never cleaned");
  }
}

}  // namespace asap::twin
