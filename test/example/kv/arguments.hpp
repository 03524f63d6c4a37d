#pragma once

#include "transport.hpp"

#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kv {

/// Options of the form `--name value`. Throws std::invalid_argument.
class arguments {
  public:
    template <class Integer>
    arguments& number(const std::string& name, Integer& value, Integer least = 1) {
        return option(name,
                      [&value, least, name](std::string_view text) { value = parse<Integer>(name, text, least); });
    }
    arguments& text(const std::string& name, std::string& value) {
        return option(name, [&value](std::string_view text) { value = text; });
    }
    /// ADDRESS:PORT, an IPv6 address in brackets or without.
    arguments& place(const std::string& name, address& value) {
        return option(name, [&value, name](std::string_view text) {
            const auto colon = text.rfind(':');
            if (colon == std::string_view::npos) throw std::invalid_argument(name + " needs ADDRESS:PORT");
            value.port = parse<std::uint16_t>(name, text.substr(colon + 1), 0);
            value.host = text.substr(0, colon);
            if (value.host.starts_with('[') && value.host.ends_with(']'))
                value.host = value.host.substr(1, value.host.size() - 2);
        });
    }
    arguments& transport(const std::string& name, transport_kind& value) {
        return option(name, [&value, name](std::string_view text) {
            if (text != "tcp" && text != "cm") throw std::invalid_argument(name + " is tcp or cm");
            value = text == "cm" ? transport_kind::cm : transport_kind::tcp;
        });
    }
    /// False: only the help was asked for.
    bool parse_all(int count, char** words, const char* help) const {
        for (int i = 1; i < count; ++i) {
            const std::string word = words[i];
            if (word == "--help") return fmt::print("{}", help), false;
            const auto found = options_.find(word);
            if (found == options_.end()) throw std::invalid_argument("unknown option " + word + "; see --help");
            if (++i == count) throw std::invalid_argument(word + " needs a value");
            found->second(words[i]);
        }
        return true;
    }

  private:
    template <class Integer>
    static Integer parse(const std::string& name, std::string_view text, Integer least) {
        Integer value{};
        const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (code != std::errc{} || end != text.data() + text.size() || value < least)
            throw std::invalid_argument(fmt::format("{} needs a number from {} on", name, least));
        return value;
    }
    arguments& option(const std::string& name, std::function<void(std::string_view)> take) {
        options_[name] = std::move(take);
        return *this;
    }

    std::map<std::string, std::function<void(std::string_view)>> options_;
};

inline vb::context open_device(const std::string& name) {
    return (name.empty() ? vb::context::open_default() : vb::context::open(name)).value();
}

/// What `program` does, with exceptions as a line and exit status 2.
template <class Program>
int guarded(const Program& program) {
    try {
        return program();
    } catch (const std::exception& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 2;
    }
}

} // namespace kv
