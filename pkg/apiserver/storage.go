package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/clock"

	configapi "macrack.io/macrack/pkg/apis/config"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imageapi "macrack.io/macrack/pkg/apis/image"
	instanceapi "macrack.io/macrack/pkg/apis/instance"
	rackapi "macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/config"
	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/image"
	"macrack.io/macrack/pkg/registry/image/macosimage"
	"macrack.io/macrack/pkg/registry/instance"
	"macrack.io/macrack/pkg/registry/instance/macosinstance"
	"macrack.io/macrack/pkg/registry/rack"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/restore"
	"macrack.io/macrack/pkg/registry/tenancy"
	"macrack.io/macrack/pkg/registry/txn"
)

// planners returns the rules that span objects, for the resources that have any.
func planners(clock clock.PassiveClock, fleet *fleetclock.Clock, ownership *tenancy.Ownership) map[schema.GroupResource]txn.Planner {
	return map[schema.GroupResource]txn.Planner{
		macnode.Resource:       macnode.NewPlanner(clock),
		macnodelease.Resource:  macnodelease.NewPlanner(clock, fleet, ownership),
		macosinstance.Resource: macosinstance.NewPlanner(clock, ownership),
		macosimage.Resource:    macosimage.NewPlanner(clock),
	}
}

// storage is the storage of all API groups.
type storage struct {
	config   config.Storage
	image    image.Storage
	rack     rack.Storage
	instance instance.Storage
}

// newStorage returns the storage of all API groups. The filter hides leases, instances and records
// from users.
func newStorage(options genericstore.Options, filter *tenancy.Filter, restorer *restore.Restorer) (s storage, err error) {
	if s.config, err = config.NewStorage(options); err != nil {
		return s, err
	}
	if s.image, err = image.NewStorage(options); err != nil {
		return s, err
	}
	if s.rack, err = rack.NewStorage(options, filter, defaultClass(s.config.RackConfigs.RackConfig)); err != nil {
		return s, err
	}
	s.rack.Restore = restore.REST{Restorer: restorer}
	s.instance, err = instance.NewStorage(options, filter, s.rack)
	return s, err
}

// defaultClass returns a function that returns the class of leases without a class, or an empty
// string.
func defaultClass(rackConfigs rest.Getter) func(context.Context) string {
	return func(ctx context.Context) string {
		obj, err := rackConfigs.Get(genericapirequest.WithNamespace(ctx, ""), configv1alpha1.RackConfigName, &metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return "" // the lease is refused because it has no class
		}
		return obj.(*configapi.RackConfig).Spec.DefaultClassName
	}
}

// groups returns the API groups for the generic server.
func (s storage) groups() []*genericapiserver.APIGroupInfo {
	return []*genericapiserver.APIGroupInfo{
		group(rackapi.GroupName, s.rack.Resources()),
		group(instanceapi.GroupName, s.instance.Resources()),
		group(imageapi.GroupName, s.image.Resources()),
		group(configapi.GroupName, s.config.Resources()),
	}
}

func group(name string, resources map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(name, Scheme, metav1.ParameterCodec, Codecs)
	info.NegotiatedSerializer = boundedSerializer{info.NegotiatedSerializer}
	info.VersionedResourcesStorageMap["v1alpha1"] = resources
	return &info
}
