package apiserver

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/admission/quota"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/certificatemetrics"
	generatedopenapi "macrack.io/macrack/pkg/generated/openapi"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// etcdPrefix is the prefix of the server's objects in etcd.
const etcdPrefix = "/registry"

// versions are the versions in which objects are stored.
var versions = []schema.GroupVersion{
	rackv1alpha1.SchemeGroupVersion,
	instancev1alpha1.SchemeGroupVersion,
	imagev1alpha1.SchemeGroupVersion,
	configv1alpha1.SchemeGroupVersion,
}

// Options are the options of the server.
type Options struct {
	Recommended *genericoptions.RecommendedOptions

	// Clock is the clock of the rules about time. It is not a flag, because production servers
	// always use the real time.
	Clock clock.WithTicker

	// ShutdownDelay is the time between the end of the server's readiness and the end of its
	// service. Balancers need it to send new connections to other servers.
	ShutdownDelay time.Duration

	// UserQPS and UserBurst limit the requests of each user, except administrators and components.
	// 0 requests a second is no limit.
	UserQPS   float64
	UserBurst int

	// Namespaces returns the UIDs of namespaces in tests; nil for those of the cluster.
	Namespaces tenancy.Namespaces
}

// NewOptions returns the default options of the server.
func NewOptions() *Options {
	o := &Options{
		Recommended: genericoptions.NewRecommendedOptions(etcdPrefix, Codecs.LegacyCodec(versions...)),
		Clock:       clock.RealClock{},

		ShutdownDelay: defaultShutdownDelay,

		UserQPS:   defaultUserQPS,
		UserBurst: defaultUserBurst,
	}
	o.Recommended.Etcd.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	quota.Enable(o.Recommended.Admission)
	o.Recommended.ExtraAdmissionInitializers = func(*genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
		return []admission.PluginInitializer{quota.Initializer()}, nil
	}
	o.Recommended.Admission.Decorators = append(admission.Decorators{admission.DecoratorFunc(onlyCreates)}, o.Recommended.Admission.Decorators...)
	return o
}

// AddFlags adds the flags of the options.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Recommended.AddFlags(flags)
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", o.ShutdownDelay, "Time to continue serving after a request to terminate. /readyz fails during this time, so balancers send new connections to other servers.")
	flags.Float64Var(&o.UserQPS, "user-qps", o.UserQPS, "Requests a second that this server accepts from one user, on average. Others are answered with 429 and Retry-After. Administrators and components are not limited. 0 is no limit.")
	flags.IntVar(&o.UserBurst, "user-burst", o.UserBurst, "Requests that this server accepts from one user at once.")
}

// Validate returns the errors in the options.
func (o *Options) Validate() error {
	errs := o.Recommended.Validate()
	if o.ShutdownDelay < 0 {
		errs = append(errs, fmt.Errorf("--shutdown-delay-duration must not be negative, but is %s", o.ShutdownDelay))
	}
	if o.UserQPS < 0 {
		errs = append(errs, fmt.Errorf("--user-qps must not be negative, but is %g", o.UserQPS))
	}
	if o.UserQPS > 0 && o.UserBurst < 1 {
		errs = append(errs, fmt.Errorf("--user-burst must be 1 or more, not %d", o.UserBurst))
	}
	if len(o.Recommended.Etcd.EtcdServersOverrides) > 0 {
		errs = append(errs, errors.New("--etcd-servers-overrides is not supported; all resources must be in one etcd cluster"))
	}
	if o.Recommended.Etcd.DefaultStorageMediaType != runtime.ContentTypeProtobuf {
		errs = append(errs, fmt.Errorf("--storage-media-type must be %s", runtime.ContentTypeProtobuf))
	}
	return utilerrors.NewAggregate(errs)
}

// defaultShutdownDelay exceeds the time in which a cluster removes a terminating pod from a
// Service.
const defaultShutdownDelay = 5 * time.Second

// watchTerminationGracePeriod is the time that clients have to move their watches to another server
// when a server stops.
const watchTerminationGracePeriod = 5 * time.Second

// Config returns the configuration of a server with these options.
func (o *Options) Config() (*Config, error) {
	if err := o.Recommended.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, fmt.Errorf("cannot make a serving certificate: %w", err)
	}
	config := genericapiserver.NewRecommendedConfig(Codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.FeatureGate = o.Recommended.FeatureGate
	// Without it, a server with open watches takes a minute to stop.
	config.ShutdownWatchTerminationGracePeriod = watchTerminationGracePeriod
	config.ShutdownDelayDuration = o.ShutdownDelay
	// After the delay, clients with open connections are told to try another server.
	config.ShutdownSendRetryAfter = true

	namer := openapi.NewDefinitionNamer(Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = "MacRack"
	config.OpenAPIConfig.Info.Version = "v1alpha1"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config.Info = config.OpenAPIConfig.Info

	recommended := *o.Recommended
	recommended.Etcd = nil // applied below: the recommended way writes JSON
	if err := recommended.ApplyTo(config); err != nil {
		return nil, err
	}
	if err := o.applyEtcd(config); err != nil {
		return nil, err
	}
	return &Config{Generic: config, Clock: o.Clock, Namespaces: o.Namespaces, UserQPS: o.UserQPS, UserBurst: o.UserBurst}, nil
}

// CertificateMetrics returns the metrics of the certificates of the server. Call it after Config,
// which makes a serving certificate if no file is set.
func (o *Options) CertificateMetrics() *certificatemetrics.Collector {
	sources := map[string]certificatemetrics.Source{}
	if serving := o.Recommended.SecureServing.ServerCert; serving.GeneratedCert != nil {
		sources["serving"] = certificatemetrics.PEM(func() ([]byte, error) {
			cert, _ := serving.GeneratedCert.CurrentCertKeyContent()
			return cert, nil
		})
	} else if serving.CertKey.CertFile != "" {
		sources["serving"] = certificatemetrics.File(serving.CertKey.CertFile)
	}
	if file := o.Recommended.Etcd.StorageConfig.Transport.CertFile; file != "" {
		sources["etcd-client"] = certificatemetrics.File(file)
	}
	return certificatemetrics.New(sources)
}

// applyEtcd stores objects in protobuf.
func (o *Options) applyEtcd(config *genericapiserver.RecommendedConfig) error {
	etcd := *o.Recommended.Etcd
	etcd.StorageConfig.StorageObjectCountTracker = config.StorageObjectCountTracker
	factory := serverstorage.NewDefaultStorageFactory(
		etcd.StorageConfig,
		etcd.DefaultStorageMediaType,
		Codecs,
		serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(Scheme, config.EffectiveVersion),
		serverstorage.NewResourceConfig(),
		prefixes(),
	)
	return etcd.ApplyWithStorageFactoryTo(factory, &config.Config)
}

// prefixes returns the storage prefix of each resource, below the prefix of all keys.
func prefixes() map[schema.GroupResource]string {
	prefixes := map[schema.GroupResource]string{}
	for _, r := range []schema.GroupResource{
		rackv1alpha1.Resource("macnodeclasses"),
		rackv1alpha1.Resource("macnodes"),
		rackv1alpha1.Resource("macnodeleases"),
		rackv1alpha1.Resource("auditrecords"),
		instancev1alpha1.Resource("instanceclasses"),
		instancev1alpha1.Resource("macosinstances"),
		imagev1alpha1.Resource("macosimages"),
		configv1alpha1.Resource("rackconfigs"),
	} {
		prefixes[r] = r.Group + "/" + r.Resource
	}
	return prefixes
}
