#pragma once

#include "protocol.hpp"

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

namespace kv {

/// Keys and values, for all threads of a server: shards, each with a mutex and its part of the memory. A value is never
/// changed where it lies; another one gets another slot, and a slot is used again as late as can be. So a client that
/// was told a location reads what was there when it was told, or else sees that it did not. Thread-safe.
class store {
  public:
    store(const vb::protection_domain& domain, std::size_t slots_of_a_shard)
        : memory_(vb::memory_region::allocate(domain, shards_.size() * slots_of_a_shard * slot_bytes,
                                              vb::access_flags::remote_read)
                      .value()) {
        for (std::size_t i = 0; i < shards_.size() * slots_of_a_shard; ++i)
            shards_[i / slots_of_a_shard].free.push_back(i * slot_bytes);
    }

    status put(std::string_view key, std::span<const std::byte> value) {
        shard& in = shard_of(key);
        const std::lock_guard lock(in.mutex);
        if (in.free.empty()) return status::full;
        const entry made{in.free.front(), value.size(), ++in.versions};
        in.free.pop_front();
        write(made, value);
        const auto [place, fresh] = in.entries.try_emplace(std::string(key), made);
        if (!fresh) in.free.push_back(std::exchange(place->second, made).offset);
        return status::ok;
    }
    status erase(std::string_view key) {
        shard& in = shard_of(key);
        const std::lock_guard lock(in.mutex);
        const auto place = in.entries.find(key);
        if (place == in.entries.end()) return status::not_found;
        in.free.push_back(place->second.offset);
        in.entries.erase(place);
        return status::ok;
    }
    std::optional<location> locate(std::string_view key) {
        shard& in = shard_of(key);
        const std::lock_guard lock(in.mutex);
        const auto place = in.entries.find(key);
        if (place == in.entries.end()) return {};
        const entry& e = place->second;
        return location{memory_.remote(e.offset, sizeof(slot_header) + e.size), e.version};
    }
    /// Copies it to `to`, and gives its size there.
    status get(std::string_view key, std::span<std::byte> to, std::size_t& size) {
        shard& in = shard_of(key);
        const std::lock_guard lock(in.mutex);
        const auto place = in.entries.find(key);
        if (place == in.entries.end()) return status::not_found;
        size = place->second.size;
        if (size > to.size()) return status::too_large;
        std::memcpy(to.data(), memory_.bytes().data() + place->second.offset + sizeof(slot_header), size);
        return status::ok;
    }

  private:
    static constexpr std::size_t slot_bytes = sizeof(slot_header) + max_value;
    struct entry {
        std::size_t offset, size;
        std::uint64_t version;
    };
    struct hash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    struct shard {
        std::mutex mutex;
        std::unordered_map<std::string, entry, hash, std::equal_to<>> entries;
        std::deque<std::size_t> free; ///< offsets of slots, the one first that has been free longest
        std::uint64_t versions = 0;
    };

    shard& shard_of(std::string_view key) { return shards_[hash{}(key) % shards_.size()]; }
    void write(const entry& e, std::span<const std::byte> value) {
        std::byte* const to = memory_.bytes().data() + e.offset;
        const slot_header header{e.version, checksum(e.version, value)};
        std::memcpy(to, &header, sizeof header);
        std::memcpy(to + sizeof header, value.data(), value.size());
    }

    std::array<shard, 16> shards_;
    vb::memory_region memory_;
};

} // namespace kv
