"""A unit test in the style of TensorFlow's own, run by tf.test.main."""

import numpy as np

import flowrt as tf


def scaled_tanh(x, scale):
    return scale * tf.tanh(x)


class ScaledTanhTest(tf.test.TestCase):
    def setUp(self):
        self.x = np.linspace(-1, 1, 6).reshape(2, 3).astype(np.float32)

    def testValue(self):
        with self.test_session():
            y = scaled_tanh(self.x, 2.0)
            self.assertAllClose(2 * np.tanh(self.x), y.eval())
            self.assertShapeEqual(self.x, y)
            self.assertEqual(y.get_shape().as_list(), [2, 3])

    def testGradient(self):
        with self.test_session() as sess:
            x = tf.constant(self.x)
            y = scaled_tanh(x, 3.0)
            error = tf.test.compute_gradient_error(x, [2, 3], y, [2, 3], x_init_value=self.x)
            self.assertLess(error, 1e-2)
            self.assertAllEqual(sess.run(tf.shape(y)), [2, 3])

    def testErrors(self):
        with self.cached_session():
            with self.assertRaises(ValueError):
                tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))
            with self.assertRaisesRegexp(tf.errors.InvalidArgumentError, "negative"):
                tf.Assert(False, ["negative"]).run()
            with self.assertRaisesOpError("not finite|Tensor had"):
                tf.check_numerics(tf.constant(np.nan), "not finite").eval()
        self.assertAllCloseAccordingToType(np.float16(1), np.float16(1.0004))
        self.assertNear(1.0, 1.001, 0.01)
        self.assertTrue(tf.test.get_temp_dir())


if __name__ == "__main__":
    print("gpu:", tf.test.is_built_with_cuda() and tf.test.is_gpu_available())
    tf.test.main()
