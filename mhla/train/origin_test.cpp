// Paths of options from another folder, words that are no paths, and data that moved.
#include "mhla/train/origin.h"

#include <gtest/gtest.h>

#include "mhla/io/file.h"
#include "mhla/testing/messages.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

TEST(Origin, AbsoluteForms) {
  const TemporaryRun run;
  fs::create_directories(run.path("sets/pets"));
  const fs::path kept = fs::current_path();
  fs::current_path(run.path("sets"));
  const std::string pets = (fs::current_path() / "pets").string();
  EXPECT_EQ(origin::absolute_form("pets"), pets);
  EXPECT_EQ(origin::absolute_form("pets/"), pets);
  EXPECT_EQ(origin::absolute_form("../sets/pets"), pets);
  EXPECT_EQ(origin::absolute_form("folder:pets"), "folder:" + pets);
  EXPECT_EQ(origin::absolute_form("folder:" + pets), "folder:" + pets);
  EXPECT_EQ(origin::absolute_form("new", /*made=*/true), (fs::current_path() / "new").string());
  fs::create_directory("default"), fs::create_directory("300");
  for (const char* word : {"", "default", "mqar", "bytes", "fashion-mnist", "train:300", "nowhere", "mnist:nowhere"})
    EXPECT_EQ(origin::absolute_form(word), word);
  fs::current_path(kept);
}

TEST(Origin, WhatMovedIsLookedForWhereItWasTyped) {
  const TemporaryRun run;
  fs::create_directories(run.path("a"));
  LmOptions options;
  options.data = run.path("a").string(), options.tokenizer = "bytes";
  note_origin(options);
  EXPECT_EQ(write_json(options.origin), write_json(JsonValue().set("data", options.data).set("tokenizer", "bytes")));
  options.origin.set("data", run.path("gone").string());
  EXPECT_EQ(located(options).data, run.path("a").string());  // where it was is gone
  options.data = "nowhere";
  EXPECT_EQ(located(options).data, run.path("gone").string());  // neither is there: named by where it was
  EXPECT_EQ(as_typed(located(options), options).data, "nowhere");
  options.origin = without_origin(options.origin, "data");
  EXPECT_EQ(located(options).data, "nowhere");
}

TEST(Origin, WhatNobodyWroteIsRefusedByName) {
  LmOptions options;
  options.origin.set("data", 0);
  EXPECT_EQ(message_of([&] { located(options); }), "train.json: 'origin': JSON value is an integer, expected a string");
  options.origin = 0.5;
  EXPECT_EQ(message_of([&] { note_origin(options); }),
            "train.json: 'origin': JSON value is a real number, expected an object");
}

}  // namespace
}  // namespace mhla::train
