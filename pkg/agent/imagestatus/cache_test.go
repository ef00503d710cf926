package imagestatus

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	macrackfake "macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	informers "macrack.io/macrack/pkg/generated/informers/externalversions"
)

func TestCredentialsOfImages(t *testing.T) {
	kube := kubefake.NewClientset()
	c := &Cache{Kube: kube}
	const tenant = "acme"
	const config = `{"auths":{}}`
	for _, secret := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "robot"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "macrack-images", Name: "opaque"}, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"password": []byte("hunter2")}},
	} {
		_, err := kube.CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	kube.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "globex" {
			return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "robot", errors.New("no relationship found between node and this object"))
		}
		return false, nil, nil
	})
	image := func(namespace, name string) *imagev1alpha1.MacOSImage {
		return &imagev1alpha1.MacOSImage{Spec: imagev1alpha1.MacOSImageSpec{PullSecretRef: &imagev1alpha1.SecretReference{Namespace: namespace, Name: name}}}
	}
	data, err := c.credentials(image(tenant, "robot"))(t.Context())
	require.NoError(t, err)
	assert.Equal(t, config, string(data))
	for says, image := range map[string]*imagev1alpha1.MacOSImage{
		"the Mac may not read Secret globex/robot (spec.pullSecretRef); use a Secret in namespace macrack-images": image("globex", "robot"),
		"Secret acme/other (spec.pullSecretRef) does not exist":                                                   image(tenant, "other"),
		"has type \"Opaque\"; use a Secret of type kubernetes.io/dockerconfigjson":                                image("macrack-images", "opaque"),
	} {
		_, err := c.credentials(image)(t.Context())
		require.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	assert.Nil(t, c.credentials(&imagev1alpha1.MacOSImage{}))
	assert.True(t, describe(image(tenant, "robot"), tenant).Private, "it leaves with the tenant")
	assert.False(t, describe(image("macrack-images", "robot"), tenant).Private, "it is public")
}

// A store evicts images before it pulls one.
func TestEventsOfAPullAfterAnEviction(t *testing.T) {
	macNodes := informers.NewSharedInformerFactory(macrackfake.NewClientset(), 0).Rack().V1alpha1().MacNodes()
	require.NoError(t, macNodes.Informer().GetStore().Add(&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}))
	recorder := record.NewFakeRecorder(3)
	recorder.IncludeObject = true
	c := &Cache{
		MacNode:  objects.NewMacNode("mac-1", nil, macNodes, clock.RealClock{}),
		Queue:    queue.New[queue.Key](clock.RealClock{}, time.Second),
		Recorder: recorder,
	}
	onEvent := c.onEvent(&corev1.ObjectReference{APIVersion: "instance.macrack.io/v1alpha1", Kind: "MacOSInstance", Namespace: "acme", Name: "one"})
	for _, tt := range []struct{ reason, kind string }{{images.EventEvicted, "MacNode"}, {images.EventPulling, "MacOSInstance"}, {images.EventPulled, "MacOSInstance"}} {
		onEvent(images.Event{Reason: tt.reason, Message: "image"})
		event := <-recorder.Events
		assert.Contains(t, event, "Normal "+tt.reason+" image involvedObject{kind="+tt.kind+",")
	}
}
