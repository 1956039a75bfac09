// JSON, written in order.
#pragma once
#include <string>
#include <type_traits>

namespace musa_sim {

class Json {
 public:
  void open(char bracket) { separate(), text_ += bracket, first_ = true; }
  void open(const char* name, char bracket) { key(name), text_ += bracket, first_ = true; }
  void close(char bracket) { text_ += bracket, first_ = false; }
  void field(const char* name, const std::string& value) { key(name), quote(value); }
  template <class Number, class = std::enable_if_t<std::is_arithmetic<Number>::value>>
  void field(const char* name, Number value) {
    key(name);
    text_ += std::to_string(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  bool first_ = true;  // nothing stands before in this bracket

  void separate() {
    if (!first_) text_ += ",\n";
    first_ = false;
  }
  void key(const char* name) {
    separate();
    quote(name);
    text_ += ": ";
  }
  void quote(const std::string& value) {
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    text_ += '"';
  }
};

}  // namespace musa_sim
