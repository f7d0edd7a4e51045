import numpy as np, pytest, flowrt as tf
from tests.executor.test_remote_device import config, plug_in
@pytest.mark.parametrize("seed", range(3))
def test_it(monkeypatch, seed):
    cupy=plug_in(monkeypatch, seed)
    ds=tf.data.Dataset.from_tensor_slices(np.arange(40.,dtype=np.float32)).repeat(5).batch(4,drop_remainder=True).apply(tf.data.experimental.prefetch_to_device("/gpu:0"))
    it=ds.make_one_shot_iterator(); x=it.get_next()
    with tf.device("/gpu:0"):
        v=tf.get_variable("v",initializer=np.zeros(4,np.float32))
        up=v.assign_add(x*2)
    print(x.device, x.shape)
    with tf.Session(config=config()) as s:
        s.run(tf.global_variables_initializer())
        for _ in range(10): s.run(up.op)
        print(s.run(v))
        assert s.run(v).tolist()==[360.,380.,400.,420.]
        for _ in range(20): s.run(up.op)
        assert s.run(v).tolist()==[3*360.,3*380.,3*400.,3*420.]
