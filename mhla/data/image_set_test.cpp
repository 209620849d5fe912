// Every reader on files written here: what is in them comes back, and each way to be wrong has one clear message.
#include "mhla/data/image_set.h"

#include <sys/stat.h>

#include <map>
#include <set>

#include "mhla/data/data_fixture.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

std::string refused(const std::string& data, Split split = Split::kTrain) {
  return message_of([&] { open_images(data, split); });
}

std::vector<std::byte> packed(const ByteList& bytes) { return gzip(std::as_bytes(std::span(bytes))); }

void write_idx(const ScratchFolder& folder, std::uint32_t train, std::uint32_t test, bool gz) {
  const auto put = [&](const std::string& name, const ByteList& bytes) {
    if (gz) folder.write(name + ".gz", packed(bytes));
    if (!gz) folder.write(name, bytes);
  };
  put("train-images-idx3-ubyte", idx_images(train, 5, 7));
  put("train-labels-idx1-ubyte", idx_labels(train));
  put("t10k-images-idx3-ubyte", idx_images(test, 5, 7));
  put("t10k-labels-idx1-ubyte", idx_labels(test));
}

TEST(IdxImages, PlainAndPacked) {
  for (const bool gz : {false, true}) {
    const ScratchFolder folder;
    write_idx(folder, 23, 4, gz);
    for (const std::string& data : {folder.path(), "mnist:" + folder.path()}) {
      const ImageSetPtr set = open_images(data, Split::kTrain);
      EXPECT_EQ(set->size(), 23);
      EXPECT_EQ(set->classes(), 10);
      EXPECT_EQ(set->channels(), 1);
      EXPECT_EQ(set->height(), 5);
      EXPECT_EQ(set->width(), 7);
      EXPECT_EQ(set->name(), "mnist, train");
      EXPECT_EQ(set->class_names()[3], "3");
      Image image;
      for (std::int64_t i = 0; i < 23; ++i) {
        EXPECT_EQ(set->label(i), i % 10);
        set->decode(i, image);
        ASSERT_EQ(image.pixels.size(), 35u);
        for (std::size_t p = 0; p < 35; ++p)
          ASSERT_EQ(image.pixels[p], (31 * static_cast<std::size_t>(i) + 7 * p) % 251) << i << ", " << p;
      }
    }
    EXPECT_EQ(open_images("fashion-mnist:" + folder.path(), Split::kTest)->size(), 4);
    EXPECT_EQ(open_images("fashion-mnist:" + folder.path(), Split::kTest)->class_names()[9], "Ankle boot");
    EXPECT_TRUE(has_split(folder.path(), Split::kTest));
  }
}

TEST(IdxImages, WrongFilesAreSaid) {
  const ScratchFolder folder;
  const auto expect = [&](const std::string& file, const ByteList& bytes, const std::string& message) {
    write_idx(folder, 12, 4, false);
    folder.write(file, bytes);
    const std::string said = refused("mnist:" + folder.path());
    EXPECT_TRUE(has(said, file) && has(said, message)) << said;
  };
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  expect(images, idx_labels(12), "begins with 0x00000801, expected 0x00000803 (IDX, images)");
  expect(labels, idx_images(12, 5, 7), "begins with 0x00000803, expected 0x00000801 (IDX, labels)");
  ByteList cut = idx_images(12, 5, 7);
  cut.resize(cut.size() - 1);
  expect(images, cut, "419 bytes after the head, expected 420 for its 12 images: the file is cut short");
  cut.resize(7);
  expect(images, cut, "7 bytes, expected an IDX file of at least 16");
  ByteList more = idx_labels(12);
  more.push_back(1);
  expect(labels, more, "13 bytes after the head, expected 12");
  expect(labels, idx_labels(11), "12 images, but ");
  ByteList wrong = idx_labels(12);
  wrong[8 + 5] = 10;
  expect(labels, wrong, "label 10 of item 5, expected 0 to 9");
  expect(images, idx_images(12, 0, 7), "expected sides from 1 to");
  expect(images, idx_images(0, 5, 7), "holds nothing");
  ByteList huge;
  for (const std::uint32_t value : {0x803u, 0xffffffffu, 65500u, 65500u}) put_big_endian(huge, value);
  expect(images, huge, "0 bytes after the head, expected 18426483437373750000 for its 4294967295 images");
  expect(images, ByteList{}, "0 bytes");

  write_idx(folder, 12, 4, false);
  std::vector<std::byte> half = packed(idx_images(12, 5, 7));
  half.resize(half.size() / 2);
  std::filesystem::remove(folder.path(images));
  folder.write(images + ".gz", half);
  EXPECT_TRUE(has(refused("mnist:" + folder.path()), images + ".gz: gzip data ends too early"));
  std::filesystem::remove(folder.path(images + ".gz"));
  EXPECT_TRUE(has(refused("mnist:" + folder.path()), "no images of mnist, looked for train-images-idx3-ubyte"));
}

TEST(IdxImages, DebiansFashionMnist) {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
    GTEST_SKIP() << "the images are not there: install Debian's dataset-fashion-mnist, as make test does";
  const ImageSetPtr set = open_images("fashion-mnist", Split::kTest);
  EXPECT_EQ(set->size(), 10000);
  EXPECT_EQ(set->height(), 28);
  EXPECT_EQ(set->class_names()[static_cast<std::size_t>(set->label(0))], "Ankle boot");
  std::map<int, int> counts;
  for (std::int64_t i = 0; i < set->size(); ++i) ++counts[set->label(i)];
  for (int c = 0; c < 10; ++c) EXPECT_EQ(counts[c], 1000);
}

void write_cifar10(const ScratchFolder& folder, const std::string& below = "") {
  for (int batch = 0; batch < 5; ++batch)
    folder.write(below + str("data_batch_", batch + 1, ".bin"), cifar_records(6, 6 * batch, 10));
  folder.write(below + "test_batch.bin", cifar_records(4, 100, 10));
}

TEST(CifarImages, TenAndHundredClasses) {
  const ScratchFolder ten, hundred;
  write_cifar10(ten, "cifar-10-batches-bin/");
  hundred.write("train.bin", cifar_records(130, 0, 100));
  hundred.write("test.bin", cifar_records(7, 0, 100));
  std::string names;
  for (int i = 0; i < 100; ++i) names += str("fine ", i, "\n");
  hundred.write_text("fine_label_names.txt", names + "\n");
  for (const auto& [data, size, classes] : {std::tuple{ten.path(), 30, 10}, {hundred.path(), 130, 100}}) {
    const ImageSetPtr set = open_images(data, Split::kTrain);
    EXPECT_EQ(set->size(), size);
    EXPECT_EQ(set->classes(), classes);
    EXPECT_EQ(set->channels(), 3);
    Image image;
    for (std::int64_t i = 0; i < size; ++i) {
      EXPECT_EQ(set->label(i), i % classes);
      set->decode(i, image);
      ASSERT_EQ(image.height, 32);
      for (std::size_t p = 0; p < 1024; ++p)
        for (std::size_t c = 0; c < 3; ++c)
          ASSERT_EQ(image.pixels[3 * p + c], (17 * static_cast<std::size_t>(i) + 5 * c + p) % 253);
    }
  }
  EXPECT_EQ(open_images("cifar10:" + ten.path(), Split::kTest)->size(), 4);
  EXPECT_EQ(open_images("cifar10:" + ten.path(), Split::kTest)->class_names()[9], "truck");
  EXPECT_EQ(open_images("cifar100:" + hundred.path(), Split::kTest)->class_names()[42], "fine 42");
  EXPECT_EQ(open_images(hundred.path(), Split::kTest)->name(), "cifar100, test");
}

TEST(CifarImages, WrongFilesAreSaid) {
  const ScratchFolder folder;
  const std::string data = "cifar10:" + folder.path();
  write_cifar10(folder);
  ByteList cut = cifar_records(6, 0, 10);
  cut.pop_back();
  folder.write("data_batch_2.bin", cut);
  EXPECT_TRUE(has(refused(data), "data_batch_2.bin: 18437 bytes, expected a multiple of 3073")) << refused(data);
  folder.write("data_batch_2.bin", cifar_records(5, 0, 10));
  EXPECT_TRUE(has(refused(data), "data_batch_2.bin: 5 images, expected as many as in ")) << refused(data);
  ByteList wrong = cifar_records(6, 0, 10);
  wrong[3073 * 3] = 77;
  folder.write("data_batch_2.bin", wrong);
  EXPECT_TRUE(has(refused(data), "data_batch_2.bin, item 3: label 77, expected 0 to 9")) << refused(data);
  std::filesystem::remove(folder.path("data_batch_2.bin"));
  EXPECT_TRUE(has(refused(data), "data_batch_2.bin: is missing, expected data_batch_1.bin to data_batch_5.bin"));
  write_cifar10(folder);
  folder.write_text("batches.meta.txt", "one\ntwo\n");
  EXPECT_TRUE(has(refused(data), "batches.meta.txt: 2 class names, expected 10"));
}

TEST(FolderImages, ClassesByNameAndValByTheListOfTrain) {
  const ScratchFolder folder;
  const Image red = smooth_image(9, 8, 3), grey = noise_image(4, 5, 1, 3);
  folder.write("train/owl/b.png", encode_png(red));
  folder.write("train/owl/deep/a.JPG", encode_jpeg(red, 95));
  folder.write("train/ant/x.png", encode_png(grey));
  folder.write("train/bee/x.jpeg", encode_jpeg(grey));
  folder.write_text("train/bee/notes.txt", "no image");
  folder.write("train/.cache/x.png", encode_png(grey));
  folder.write("val/owl/1.png", encode_png(red));
  for (const std::string& data : {folder.path(), "folder:" + folder.path()}) {
    const ImageSetPtr set = open_images(data, Split::kTrain);
    ASSERT_EQ(set->size(), 4);
    EXPECT_EQ(set->class_names(), (std::vector<std::string>{"ant", "bee", "owl"}));
    EXPECT_EQ(set->height(), 0);
    EXPECT_EQ(set->item_name(2), folder.path("train/owl/b.png"));
    EXPECT_EQ(set->label(3), 2);
    Image image;
    set->decode(0, image);
    EXPECT_EQ(image.channels, 3);  // grey files too
    EXPECT_EQ(image.pixels[0], grey.pixels[0]);
    EXPECT_EQ(image.pixels[2], grey.pixels[0]);
    set->decode(2, image);
    EXPECT_EQ(image, red);
    set->decode(3, image);
    EXPECT_LE(worst_difference(image, red), 12);  // chroma of a tiny picture at half the size
    EXPECT_EQ(open_images(data, Split::kTest)->label(0), 2);
    EXPECT_EQ(open_images(data, Split::kTest)->classes(), 3);
  }
  folder.write("val/yak/1.png", encode_png(red));
  EXPECT_TRUE(has(refused(folder.path(), Split::kTest), "class 'yak' is not among the 3 of "));
}

TEST(FolderImages, WithoutSplitFolders) {
  const ScratchFolder folder;
  folder.write("a/1.png", encode_png(noise_image(3, 3, 3, 1)));
  folder.write("b/1.png", encode_png(noise_image(3, 3, 3, 2)));
  EXPECT_EQ(open_images(folder.path(), Split::kTrain)->size(), 2);
  EXPECT_FALSE(has_split(folder.path(), Split::kTest));
  EXPECT_TRUE(has(refused(folder.path(), Split::kTest), "no test images, looked for the folders val, validation"));
  std::filesystem::create_directories(folder.path("c"));
  EXPECT_TRUE(
      has(refused(folder.path()), folder.path("c") + ": no image, expected " + readable_endings() + " files of"))
      << refused(folder.path());
  folder.write_text("c/1.heic", "");
  EXPECT_TRUE(has(refused(folder.path()), "files of class 'c'; left out: 1 file: 1 .heic")) << refused(folder.path());
}

TEST(FolderImages, ValWithoutImagesIsNoDataWithoutASplit) {
  const ScratchFolder folder;
  folder.write("train/a/1.png", encode_png(noise_image(3, 3, 3, 1)));
  folder.write("train/b/1.png", encode_png(noise_image(3, 3, 3, 2)));
  EXPECT_FALSE(has_split(folder.path(), Split::kTest));
  folder.write("val/1.png", encode_png(noise_image(3, 3, 3, 3)));  // of no class
  EXPECT_TRUE(has_split(folder.path(), Split::kTest));
  EXPECT_TRUE(has(refused(folder.path(), Split::kTest), folder.path("val") + ": no image, expected " +
                                                            readable_endings() + " files in folders of the 2 classes"))
      << refused(folder.path(), Split::kTest);
}

TEST(FolderImages, LabelsHaveAChecksum) {
  const auto labels = [](std::vector<int> of) {
    std::vector<Image> images(of.size(), noise_image(3, 3, 1, 1));
    return labels_checksum(
        *images_in_memory({.name = "set", .class_names = {"a", "b"}, .images = images, .labels = std::move(of)}));
  };
  EXPECT_EQ(labels({0, 1, 1}), labels({0, 1, 1}));
  EXPECT_NE(labels({0, 1, 1}), labels({1, 0, 1}));
  EXPECT_NE(labels({0, 0}), labels({0, 0, 0}));
}

TEST(FolderImages, ALinkToAFolderAboveIsRefused) {
  const ScratchFolder folder;
  folder.write("a/1.png", encode_png(noise_image(3, 3, 3, 1)));
  folder.write("b/1.png", encode_png(noise_image(3, 3, 3, 2)));
  std::filesystem::create_directory_symlink("../b", folder.path("a/other"));  // elsewhere: taken
  EXPECT_EQ(open_images(folder.path(), Split::kTrain)->size(), 3);
  std::filesystem::create_directory_symlink("..", folder.path("a/loop"));
  EXPECT_TRUE(has(refused(folder.path()), "a/loop: is a link to a folder that it is in")) << refused(folder.path());
}

// Names of classes end up in JSON files, which are UTF-8; names of images are only shown.
TEST(FolderImages, ClassesWhoseNamesAreNoTextAreRefused) {
  const ScratchFolder folder;
  folder.write("caf\xc3\xa9/1.png", encode_png(noise_image(3, 3, 3, 1)));
  folder.write_text("cat/\xff.png", "no picture");
  const ImageSetPtr set = open_images(folder.path(), Split::kTrain);
  EXPECT_EQ(set->class_names(), (std::vector<std::string>{"caf\xc3\xa9", "cat"}));
  EXPECT_EQ(set->item_name(1), folder.path("cat/\\xff.png"));
  Image image;
  EXPECT_TRUE(has(message_of([&] { set->decode(1, image); }), "cat/\\xff.png: "));
  folder.write("caf\xe9/1.png", encode_png(noise_image(3, 3, 3, 1)));
  EXPECT_TRUE(has(refused(folder.path()), "the name of the class folder 'caf\\xe9' is not UTF-8"))
      << refused(folder.path());
}

TEST(FolderImages, TakenByEndingReadByContentAndTheRestCounted) {
  const ScratchFolder folder;
  const auto seed = [](const char* name) {
    return read_file(std::string(MHLA_SOURCE_DIR "/mhla/io/codecs/fuzz_corpus/image/") + name);
  };
  folder.write("a/1.bmp", seed("24.bmp"));
  folder.write("a/2.BMP", seed("palette.bmp"));
  folder.write("a/3.png", seed("colour.jpg"));  // by another name
  folder.write("b/deep/1.JPEG", seed("colour.jpg"));
  std::vector<LeftOut> want;
  std::int64_t images = 4;
  for (const char* name : {"lossy.webp", "palette.gif", "colour.tif"}) {  // where their libraries are
    folder.write(std::string("b/") + name, seed(name));
    const std::string ending = std::filesystem::path(name).extension();
    format_of_ending(ending)->decode != nullptr ? void(++images) : want.push_back({ending, 1});
  }
  for (const char* name : {"a/x.heic", "a/y.HEIC", "b/z.heic", "b/note.txt", "b/no_ending", "b/.hidden", "a/.DS_Store"})
    folder.write_text(name, "");
  ASSERT_EQ(::mkfifo(folder.path("a/pipe.png").c_str(), 0600), 0);  // reading it would wait for ever
  const ImageSetPtr set = open_images(folder.path(), Split::kTrain);
  EXPECT_EQ(set->size(), images);
  Image image;
  for (std::int64_t item = 0; item < set->size(); ++item) {
    set->decode(item, image);
    EXPECT_EQ(image.channels, 3) << set->item_name(item);
  }
  const auto count = [&](const std::string& ending) {
    std::int64_t files = 0;
    for (const LeftOut& one : subset(set, 2, 0)->left_out())
      if (one.ending == ending) files += one.files;
    return files;
  };
  EXPECT_EQ(set->left_out().front().ending, ".heic");  // most first
  EXPECT_EQ(count(".heic"), 3);
  EXPECT_EQ(count(".txt"), 1);
  EXPECT_EQ(count(".png"), 1);
  EXPECT_EQ(count(""), 1);
  for (const LeftOut& one : want) EXPECT_EQ(count(one.ending), 1);
  EXPECT_EQ(set->left_out().size(), 4 + want.size());
  EXPECT_EQ(left_out_text({{".heic", 3}, {"", 1}}), "4 files: 3 .heic, 1 without an ending");
  EXPECT_EQ(left_out_text({}), "");
  EXPECT_TRUE(has(left_out_warning(*set), folder.path() + ", train: left out ")) << left_out_warning(*set);
}

TEST(FolderImages, ADamagedImageIsNamedWhenItIsDecoded) {
  const ScratchFolder folder;
  folder.write("a/1.png", encode_png(noise_image(3, 3, 3, 1)));
  std::vector<std::byte> half = encode_jpeg(noise_image(30, 30, 3, 1));
  half.resize(half.size() / 2);
  folder.write("b/1.jpg", half);
  folder.write_text("b/2.png", "");
  const ImageSetPtr set = open_images(folder.path(), Split::kTrain);
  Image image;
  EXPECT_TRUE(has(message_of([&] { set->decode(1, image); }), folder.path("b/1.jpg") + ": damaged JPEG: "));
  EXPECT_TRUE(has(message_of([&] { set->decode(2, image); }), folder.path("b/2.png") + ": is empty"));
  set->decode(0, image);
  EXPECT_EQ(image.height, 3);
}

TEST(OpenImages, TestImagesAreHeldOutOfClassFoldersAlone) {
  const ScratchFolder digits, folder;
  digits.write("train-images-idx3-ubyte", idx_images(10, 4, 3));
  digits.write("train-labels-idx1-ubyte", idx_labels(10));
  EXPECT_FALSE(has_split(digits.path(), Split::kTest));
  EXPECT_FALSE(needs_hold_out(digits.path()));
  EXPECT_TRUE(has(refused(digits.path(), Split::kTest), "t10k-images-idx3-ubyte"));
  folder.write("train/a/1.png", encode_png(noise_image(3, 3, 3, 1)));
  folder.write("train/b/1.png", encode_png(noise_image(3, 3, 3, 2)));
  EXPECT_TRUE(needs_hold_out("folder:" + folder.path()));
  folder.write("val/a/1.png", encode_png(noise_image(3, 3, 3, 3)));
  EXPECT_FALSE(needs_hold_out("folder:" + folder.path()));
}

TEST(OpenImages, AFolderHasOneNameHoweverItIsSpelled) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path("a/b"));
  std::filesystem::create_directory_symlink(folder.path("a"), folder.path("link"));
  const std::string name = folder_of("folder:" + folder.path("a"));
  for (const std::string& spelled : {folder.path("a") + "/", folder.path("a/./b/.."), folder.path("link"),
                                     std::filesystem::relative(folder.path("a")).string()})
    EXPECT_EQ(folder_of("folder:" + spelled), name) << spelled;
  EXPECT_EQ(folder_of(folder.path("a")), name);
  EXPECT_NE(folder_of(folder.path("a/b")), name);
  EXPECT_EQ(folder_of("mnist:/nowhere/x/../data"), "/nowhere/data");
}

TEST(OpenImages, WhatIsNotThereIsSaid) {
  const ScratchFolder folder;
  EXPECT_TRUE(has(refused("/nowhere/data"), "data: '/nowhere/data' is no folder"));
  EXPECT_TRUE(has(refused("fashon-mnist"), "data: 'fashon-mnist' is no folder, expected one, or fashion-mnist"));
  EXPECT_TRUE(has(refused("cifar10"), "data: 'cifar10' needs a folder, cifar10:FOLDER"));
  EXPECT_TRUE(has(refused(""), "data: is empty"));
  const std::string said = refused(folder.path());
  for (const char* part : {"nothing known in ", "train-images-idx3-ubyte", "data_batch_1.bin", "train.bin", ".jpeg"})
    EXPECT_TRUE(has(said, part)) << said;
}

TEST(Subset, SharesOfEveryClassAndTheSameForASeed) {
  const ImageSetPtr whole = noise_set(103, 4, 1);  // 26, 26, 26, 25
  for (const std::int64_t count : {1, 4, 10, 50, 103}) {
    const ImageSetPtr part = subset(whole, count, 7);
    EXPECT_EQ(part->size(), count);
    std::map<int, std::int64_t> counts;
    std::set<std::string> names;
    for (std::int64_t i = 0; i < count; ++i) ++counts[part->label(i)], names.insert(part->item_name(i));
    EXPECT_EQ(static_cast<std::int64_t>(names.size()), count);
    for (int c = 0; c < 4; ++c) {
      EXPECT_LE(counts[c], count * 26 / 103 + 1);
      EXPECT_GE(counts[c], count * 25 / 103);
    }
    for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(subset(whole, count, 7)->item_name(i), part->item_name(i));
  }
  int same = 0;
  for (std::int64_t i = 0; i < 20; ++i)
    same += subset(whole, 20, 1)->item_name(i) == subset(whole, 20, 2)->item_name(i);
  EXPECT_LT(same, 15);
  EXPECT_TRUE(has(message_of([&] { subset(whole, 104, 0); }), "subset: count is 104, expected 1 to the 103"));
}

TEST(Subset, HeldOutIsDisjointAndComplete) {
  const ImageSetPtr whole = noise_set(60, 3, 1);
  const auto [kept, held] = hold_out(whole, 0.25, 3);
  EXPECT_EQ(kept->size(), 45);
  EXPECT_EQ(held->size(), 15);
  std::set<std::string> names;
  for (const ImageSetPtr& part : {kept, held})
    for (std::int64_t i = 0; i < part->size(); ++i) names.insert(part->item_name(i));
  EXPECT_EQ(names.size(), 60u);
  std::map<int, int> counts;
  for (std::int64_t i = 0; i < 15; ++i) ++counts[held->label(i)];
  for (int c = 0; c < 3; ++c) EXPECT_EQ(counts[c], 5);
  EXPECT_TRUE(has(message_of([&] { hold_out(whole, 1.0, 0); }), "hold_out: fraction is 1"));
}

TEST(ImagesInMemory, AreChecked) {
  const Image grey = noise_image(2, 2, 1, 1), colour = noise_image(2, 2, 3, 1);
  const auto said = [](std::vector<Image> images, std::vector<int> labels) {
    return message_of([&] { images_in_memory({"m", {"a", "b"}, images, labels}); });
  };
  EXPECT_TRUE(has(said({grey}, {0, 1}), "1 images and 2 labels"));
  EXPECT_TRUE(has(said({grey, colour}, {0, 1}), "image 1 has 3 channels"));
  EXPECT_TRUE(has(said({grey}, {2}), "label 2 of image 0, expected 0 to 1"));
  EXPECT_TRUE(has(said({}, {}), "no images"));
}

}  // namespace
}  // namespace mhla
